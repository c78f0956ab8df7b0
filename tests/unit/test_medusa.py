"""The drafter `medusa` says what the paper's forward pass says, in one step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle_owner import GREEDY, SAMPLED, SEEDED, TEXT, VOCAB_SIZE, Owner, finish, rows_for
from medusa_heads import (
    HIDDEN,
    NUM_HEADS,
    MedusaFiles,
    medusa_reference,
    random_medusa,
    without_outputs,
)
from safetensors.torch import load_file
from tiny_models import NUM_LAYERS, save_checkpoint, tiny_config
from torch import Tensor

from draft_service.drafters.medusa import MedusaDrafter
from draft_service.proposer import Proposer
from paceline.engine.head_tensors import Target
from paceline.engine.medusa_checkpoint import read_medusa_weights
from paceline.engine.medusa_head import MedusaHead
from paceline.engine.sampling import choose_token, token_law
from paceline.heads.medusa_config import read_medusa_config
from paceline.rounds import SequenceSettings

FILES = random_medusa(VOCAB_SIZE)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    directory = save_checkpoint(tmp_path_factory.mktemp("target"), tiny_config(VOCAB_SIZE))
    return Target("tiny", directory, HIDDEN, VOCAB_SIZE, NUM_LAYERS, has_tied_embeddings=False)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, target: Target) -> MedusaHead:
    return loaded(FILES, tmp_path_factory.mktemp("head"), target)


def loaded(
    files: MedusaFiles,
    directory: Path,
    target: Target,
    layout: str = "authors",
    dtype: torch.dtype = torch.float32,
) -> MedusaHead:
    path = str(files.write(directory, layout))
    weights = read_medusa_weights(path, read_medusa_config(path), target)
    return MedusaHead(weights, VOCAB_SIZE, dtype)


def owner_of(head: MedusaHead) -> Owner:
    proposer = Proposer(MedusaDrafter(head), 16, head.feature_size)
    return Owner(proposer, feature_size=HIDDEN)


def reference_drafts(
    files: MedusaFiles,
    token_ids: list[int],
    settings: SequenceSettings = GREEDY,
    target_output: Tensor | None = None,
) -> list[int]:
    """Each head's first choice, from the state in which the last token was chosen."""
    row = torch.from_numpy(rows_for(token_ids, HIDDEN)[-2])
    text = list(token_ids)
    for number in range(NUM_HEADS):
        logits = medusa_reference(files, row, number, target_output).float().numpy()
        text.append(choose_token(logits, settings, len(text), text))
    return text[len(token_ids) :]


VARIANTS: dict[str, dict[str, Any]] = {
    "one block": {},
    "two blocks": {"num_layers": 2},
    "draft vocabulary": {"draft_vocab_size": 24},
}


@pytest.mark.parametrize(
    ("layout", "variant"),
    [
        ("authors", "one block"),
        ("authors", "two blocks"),
        ("vllm", "one block"),
        ("vllm", "two blocks"),
        ("vllm", "draft vocabulary"),
    ],
)
def test_drafts_are_those_of_the_papers_forward_pass(
    tmp_path: Path, layout: str, variant: str, target: Target
) -> None:
    files = random_medusa(VOCAB_SIZE, **VARIANTS[variant])
    head = loaded(files, tmp_path, target, layout)
    for length in (2, 3, 23):
        said = owner_of(head).drafts(TEXT[:length], (0, length - 1))
        assert list(said.token_ids) == reference_drafts(files, TEXT[:length])


def test_no_two_of_these_cases_have_the_same_drafts() -> None:
    """Or else the test above would prove less than it says."""
    heads = [random_medusa(VOCAB_SIZE, **settings) for settings in VARIANTS.values()]
    said = [tuple(reference_drafts(head, TEXT[:length])) for head in heads for length in (3, 23)]
    assert len(set(said)) == len(said)
    assert all(len(set(drafts)) > 1 for drafts in said), "the heads of one model differ"


@pytest.mark.parametrize(
    ("layout", "draft_vocab_size"), [("authors", None), ("vllm", None), ("vllm", 24)]
)
def test_heads_without_an_output_matrix_use_the_targets_rows(
    tmp_path: Path, layout: str, draft_vocab_size: int | None, target: Target
) -> None:
    files = without_outputs(random_medusa(VOCAB_SIZE, draft_vocab_size=draft_vocab_size))
    files.settings = {"original_lm_head": True} if layout == "vllm" else {}
    head = loaded(files, tmp_path, target, layout)
    output = load_file(target.directory / "model.safetensors")["lm_head.weight"]
    said = owner_of(head).drafts(TEXT[:23], (0, 22))
    assert list(said.token_ids) == reference_drafts(files, TEXT[:23], target_output=output)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)], ids=str
)
def test_each_head_says_its_logits_over_the_targets_tokens(
    tmp_path: Path, target: Target, dtype: torch.dtype, tolerance: float
) -> None:
    files = random_medusa(VOCAB_SIZE, draft_vocab_size=24)
    head = loaded(files, tmp_path, target, "vllm", dtype)
    rows = rows_for(TEXT[:5], HIDDEN)
    for row, said in zip(rows, head.forward(rows, 2), strict=True):
        assert said.shape == (2, VOCAB_SIZE)
        for number, logits in enumerate(said):
            expected = medusa_reference(files, torch.from_numpy(row), number).numpy()
            assert np.array_equal(np.isinf(logits), np.isinf(expected))
            known = np.isfinite(expected)
            scale = np.abs(expected[known]).max()
            np.testing.assert_allclose(logits[known], expected[known], atol=tolerance * scale)


def test_seeded_drafts_use_the_targets_noise_and_penalties(head: MedusaHead) -> None:
    drafts = owner_of(head).drafts(TEXT[:23], (0, 22), settings=SEEDED)
    assert list(drafts.token_ids) == reference_drafts(FILES, TEXT[:23], SEEDED)
    assert list(drafts.token_ids) != reference_drafts(FILES, TEXT[:23])
    assert drafts.supports == ()


def test_sampled_drafts_come_with_the_law_of_each_head(head: MedusaHead) -> None:
    drafts = owner_of(head).drafts(TEXT[:23], (0, 22), settings=SAMPLED)
    assert len(drafts.supports) == len(drafts.token_ids) == NUM_HEADS
    row = torch.from_numpy(rows_for(TEXT[:23], HIDDEN)[-2])
    for index, support in enumerate(drafts.supports):
        context = [*TEXT[:23], *drafts.token_ids[:index]]
        logits = medusa_reference(FILES, row, index).float().numpy()
        law = token_law(logits, SAMPLED, len(context), context)
        assert set(support.token_ids) == set(np.flatnonzero(law).tolist())
        np.testing.assert_allclose(support.weights, law[list(support.token_ids)], rtol=1e-3)


def test_only_the_newest_row_matters_so_a_round_starts_anywhere(head: MedusaHead) -> None:
    owner = owner_of(head)
    assert list(owner.drafts(TEXT[:20], (18, 19)).token_ids) == reference_drafts(FILES, TEXT[:20])
    said = owner.drafts(TEXT[:24], (19, 23), start=20)
    assert list(said.token_ids) == reference_drafts(FILES, TEXT[:24])
    assert owner.drafts(TEXT[:24], None, start=24) == said, "sent again"
    other = [*TEXT[:12], 3, 1, 4]
    said = owner.drafts(other, (12, 14), start=12)
    assert list(said.token_ids) == reference_drafts(FILES, other)


@pytest.mark.parametrize("rows", [None, (0, 18), (19, 25), (60, 70)])
def test_without_the_row_of_the_last_token_but_one_nothing_is_proposed(
    head: MedusaHead, rows: tuple[int, int] | None
) -> None:
    owner = owner_of(head)
    data = rows_for(TEXT, HIDDEN)[slice(*rows)] if rows else None
    assert owner.drafts(TEXT[:20], rows, data=data).token_ids == ()
    said = owner.drafts(TEXT[:20], (0, 19), start=0)
    assert list(said.token_ids) == reference_drafts(FILES, TEXT[:20])


def test_a_row_that_holds_no_numbers_is_not_used(head: MedusaHead) -> None:
    rows = rows_for(TEXT[:20], HIDDEN)[:19]
    rows[18, 3] = np.nan
    assert owner_of(head).drafts(TEXT[:20], (0, 19), data=rows).token_ids == ()


def test_a_single_token_has_no_row(head: MedusaHead) -> None:
    assert owner_of(head).drafts(TEXT[:1], (0, 0)).token_ids == ()


@pytest.mark.parametrize("wanted", [1, 2, NUM_HEADS])
def test_no_more_is_proposed_than_is_wanted(head: MedusaHead, wanted: int) -> None:
    owner = Owner(Proposer(MedusaDrafter(head), wanted, HIDDEN), feature_size=HIDDEN)
    said = owner.drafts(TEXT[:20], (0, 19))
    assert list(said.token_ids) == reference_drafts(FILES, TEXT[:20])[:wanted]


def test_what_one_step_makes_is_proposed_whatever_a_step_costs(head: MedusaHead) -> None:
    said = owner_of(head).drafts(TEXT[:20], (0, 19), min_step_confidence=0.99, max_steps=1)
    assert list(said.token_ids) == reference_drafts(FILES, TEXT[:20])


def test_nothing_is_proposed_behind_a_stop_token(head: MedusaHead) -> None:
    first = reference_drafts(FILES, TEXT[:20])[0]
    settings = replace(GREEDY, stop_token_ids=frozenset({first}))
    said = owner_of(head).drafts(TEXT[:20], (0, 19), settings=settings)
    assert list(said.token_ids) == [first]


def test_all_sequences_of_a_step_run_together_and_do_not_mix(head: MedusaHead) -> None:
    proposer = Proposer(MedusaDrafter(head), 16, HIDDEN)
    texts = {"a": TEXT[:20], "b": TEXT[5:16], "c": TEXT[30:70], "unfed": TEXT[:9]}
    for name, text in texts.items():
        rows = None if name == "unfed" else (0, len(text) - 1)
        assert Owner(proposer, name, HIDDEN).accept(text, rows) is None
    results = proposer.step() or []
    said = {result.sequence_id: list(result.drafts.token_ids) for result in results}
    expected = {name: reference_drafts(FILES, text) for name, text in texts.items()}
    assert said == expected | {"unfed": []}
    assert not proposer.has_work


def test_a_forward_pass_without_numbers_proposes_nothing(tmp_path: Path, target: Target) -> None:
    head = loaded(FILES, tmp_path, target)
    matrix = head._outputs[1]
    head._outputs[1] = lambda rows: matrix(rows) * torch.nan
    said = owner_of(head).drafts(TEXT[:20], (0, 19))
    assert list(said.token_ids) == reference_drafts(FILES, TEXT[:20])[:1]


def test_a_closed_sequence_leaves_nothing_behind(head: MedusaHead) -> None:
    drafter = MedusaDrafter(head)
    owner = Owner(Proposer(drafter, 16, HIDDEN), feature_size=HIDDEN)
    owner.drafts(TEXT[:20], (0, 19))
    assert drafter.load(3).num_waiting == 3
    assert drafter.load(0).num_sequences == 1
    owner.proposer.close("a")
    assert drafter.load(0).num_sequences == 0
    assert finish(owner.proposer) == {}
