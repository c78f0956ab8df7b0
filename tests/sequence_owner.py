"""Whoever owns sequences at a verifier, stepped by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from plain_text import plain_text

from paceline.engine.model import Logits, PassSequence
from paceline.engine.table_model import TableLaw, TableModel
from paceline.rounds import Drafts, SequenceSettings, VerifyResult, VerifyRound
from paceline.token_log import TokenLog
from target_service.verifier import Verifier, VerifierLimits

VOCAB_SIZE = 16
LAW = TableLaw(8, VOCAB_SIZE)
PROMPT = [3, 1, 4, 1, 5]
GREEDY = SequenceSettings(max_length=len(PROMPT) + 24)
SEEDED = replace(GREEDY, temperature=1.0, seed=3)


class RecordingModel(TableModel):
    """Remembers how wide its passes were, and may say nonsense about one sequence."""

    def __init__(self, **room: int) -> None:
        super().__init__(LAW, **room)
        self.widths: list[list[int]] = []
        self.poison: int | None = None

    def forward(self, batch: Sequence[PassSequence]) -> list[Logits]:
        self.widths.append([len(share.token_ids) for share in batch])
        rows = super().forward(batch)
        for share, logits in zip(batch, rows, strict=True):
            if share.kv.storage[0] == self.poison:
                logits[:] = np.nan
        return rows


@dataclass
class Owner:
    """Whoever has a sequence: sends its spans and keeps what is committed."""

    verifier: Verifier
    prompt: list[int] = field(default_factory=lambda: list(PROMPT))
    settings: SequenceSettings = GREEDY
    sequence_id: str = "a"
    num_rounds: int = 0
    log: TokenLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = TokenLog.of(self.prompt)

    @property
    def said(self) -> list[int]:
        return list(self.log.token_ids[len(self.prompt) :])

    @property
    def expected(self) -> list[int]:
        return plain_text(LAW, self.prompt, self.settings)

    def send(
        self,
        drafts: Sequence[int] | Drafts = (),
        start: int = 0,
        max_new_tokens: int = 1,
        score_from: int | None = None,
    ) -> VerifyResult | None:
        self.num_rounds += 1
        return self.verifier.accept(
            VerifyRound(
                self.sequence_id,
                self.num_rounds,
                self.log.span(start),
                drafts if isinstance(drafts, Drafts) else Drafts(drafts),
                max_new_tokens,
                self.settings if start == 0 else None,
                score_from=score_from,
            )
        )

    def hear(self, result: VerifyResult) -> None:
        assert (result.sequence_id, result.error, result.held) == (self.sequence_id, None, None)
        assert result.start == len(self.log)
        self.log.token_ids.extend(result.token_ids)

    def ask(
        self, drafts: Sequence[int] | Drafts = (), start: int = 0, max_new_tokens: int = 1
    ) -> VerifyResult:
        """One round to its end, alone on the worker."""
        assert self.send(drafts, start, max_new_tokens) is None
        while True:
            for result in self.verifier.step() or []:
                self.hear(result)
                if result.last:
                    return result


def new_verifier(
    max_batch_tokens: int = 512, max_speculative_tokens: int = 8, **room: int
) -> Verifier:
    return Verifier(
        RecordingModel(**room), VerifierLimits(max_batch_tokens, max_speculative_tokens)
    )


def widths(verifier: Verifier) -> list[list[int]]:
    model = verifier._model
    assert isinstance(model, RecordingModel)
    return model.widths
