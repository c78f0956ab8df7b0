"""Feeds sequences to a drafter with an EAGLE head, and says what the paper would draft."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from eagle_heads import HIDDEN, HeadFiles, random_head
from eagle_reference import reference_logits
from numpy.typing import NDArray
from torch import Tensor

from draft_service.drafters.eagle import EagleDrafter
from draft_service.proposer import Proposer
from paceline.engine.eagle_checkpoint import read_head_weights
from paceline.engine.eagle_head import EagleHead
from paceline.engine.head_tensors import Target
from paceline.engine.sampling import choose_token
from paceline.heads.eagle_config import read_head_config
from paceline.rounds import (
    AcceptanceRule,
    Drafts,
    Features,
    ProposeResult,
    ProposeRound,
    SequenceSettings,
)
from paceline.token_log import TokenLog

VOCAB_SIZE, DRAFT_VOCAB_SIZE = 40, 24
TEXT = [7 * i * i % VOCAB_SIZE for i in range(70)]
GREEDY = SequenceSettings(max_length=200)
SEEDED = replace(GREEDY, temperature=1.0, seed=9, top_k=8, prompt_length=20, frequency_penalty=0.5)
SAMPLED = replace(SEEDED, acceptance_rule=AcceptanceRule.REJECTION)
NUMBER = 4
HEAD = random_head(VOCAB_SIZE, DRAFT_VOCAB_SIZE)


def rows_for(token_ids: list[int], size: int = 3 * HIDDEN) -> NDArray[np.float16]:
    """Features that depend on the token and its place, as a target's would."""
    rows = []
    for position, token_id in enumerate(token_ids):
        generator = np.random.default_rng((token_id, position))
        rows.append(generator.normal(size=size))
    return np.array(rows, np.float16).reshape(-1, size)


def loaded(
    head: HeadFiles,
    directory: Path,
    layout: str = "published",
    dtype: torch.dtype = torch.float32,
    target_directory: Path | None = None,
) -> EagleHead:
    """The head, for a target that only heads without an output matrix look into."""
    path = str(head.write(directory, layout))
    target = Target(
        "tiny", target_directory or directory, HIDDEN, VOCAB_SIZE, 3, has_tied_embeddings=False
    )
    config = read_head_config(path)
    return EagleHead(config, read_head_weights(path, config, target), VOCAB_SIZE, dtype)


class Owner:
    """Feeds one sequence as a coordinator does."""

    def __init__(self, proposer: Proposer, name: str = "a", feature_size: int = 3 * HIDDEN) -> None:
        self.proposer = proposer
        self.name = name
        self.feature_size = feature_size
        self.number = 0

    def accept(
        self,
        token_ids: list[int],
        rows: tuple[int, int] | None,
        settings: SequenceSettings = GREEDY,
        start: int = 0,
        data: NDArray[np.float16] | None = None,
        number: int = NUMBER,
        **least: float,
    ) -> ProposeResult | None:
        """Send a round with the features of the tokens from `rows[0]` up to `rows[1]`."""
        self.number += 1
        features = None
        if rows is not None:
            known = rows_for(token_ids, self.feature_size)
            data = known[rows[0] : rows[1]] if data is None else data
            features = Features(rows[0], len(data), data.astype("<f2").tobytes())
        span = TokenLog.of(token_ids).span(start)
        round = ProposeRound(self.name, self.number, span, number, settings, features=features)
        return self.proposer.accept(replace(round, **least))  # type: ignore[arg-type]

    def drafts(self, token_ids: list[int], rows: tuple[int, int] | None, **more: object) -> Drafts:
        assert self.accept(token_ids, rows, **more) is None  # type: ignore[arg-type]
        return finish(self.proposer)[self.name].drafts


def finish(proposer: Proposer) -> dict[str, ProposeResult]:
    results = {}
    while proposer.has_work:
        results |= {result.sequence_id: result for result in proposer.step() or []}
    return results


def proposer_of(head: EagleHead) -> Proposer:
    return Proposer(EagleDrafter(head), 16, head.feature_size)


def owner_of(head: EagleHead) -> Owner:
    return Owner(proposer_of(head), feature_size=head.feature_size)


def reference_drafts(
    head: HeadFiles,
    token_ids: list[int],
    start: int = 0,
    settings: SequenceSettings = GREEDY,
    number: int = NUMBER,
    target_output: Tensor | None = None,
) -> list[int]:
    """What the paper's head drafts from the rows from `start` on."""
    features = torch.from_numpy(rows_for(token_ids, head.feature_size)[start:-1].copy())
    text = list(token_ids)
    while len(text) < len(token_ids) + number:
        logits = reference_logits(head, features, text[start + 1 :], start, target_output)
        text.append(choose_token(logits.float().numpy(), settings, len(text), text))
    return text[len(token_ids) :]
