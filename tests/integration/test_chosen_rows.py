"""Tokens chosen on the device, with no row copied: the text and the drafts are the same."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from device_double import ChoosingCpu
from engine_runs import text
from fakes import FaultyConnection, FaultyDevice, FixedWorkers
from families import VOCAB_SIZE, family_model
from lossless_runs import answer, draft, new_sequence
from tree_drafter import TreeDrafter
from virtual_time import run_virtually

from draft_service.drafters.draft_model import ModelDrafter
from draft_service.proposer import Proposer
from paceline.engine.device import CPU, Device
from paceline.engine.device_rows import ChosenToken, DeviceRows, chosen_token, host_rows
from paceline.engine.model import PassSequence, Rows
from paceline.engine.sampling import choose_token, confidence
from paceline.engine.sequences import EngineSequence
from paceline.engine.transformer import TransformerModel
from paceline.rounds import (
    AcceptanceRule,
    DraftFault,
    Drafts,
    ProposeRound,
    RoundErrorReason,
    SequenceSettings,
    VerifyRound,
)
from paceline.token_log import TokenLog
from target_service.verifier import Verifier, VerifierLimits

PROMPT = text(20, VOCAB_SIZE)
GREEDY = SequenceSettings(max_length=len(PROMPT) + 16, prompt_length=len(PROMPT))
SEEDED = replace(GREEDY, temperature=1.0, seed=5)
STOPS = tuple(range(3, 60))  # so many that the text ends soon after it may
PLAIN = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "top-p": replace(SEEDED, top_p=0.8, choice=2, temperature=0.6),
    "top-k": replace(SEEDED, top_k=20, top_p=0.95, min_p=0.01),
}
CHANGED = {
    "biased": replace(SEEDED, logit_bias=((7, 3.0),)),
    "with log-probabilities": replace(SEEDED, num_logprobs=1),
    "rejection": replace(SEEDED, acceptance_rule=AcceptanceRule.REJECTION),
}


class RecordingModel(TransformerModel):
    """Remembers the rows that it handed out, and may hand out nonsense."""

    def __init__(self, device: Device, noise: float = 0.0) -> None:
        module = family_model("llama")
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            parameter.data += noise * torch.randn(parameter.shape, generator=generator)
        super().__init__(module, VOCAB_SIZE, 600, 32 * 512, device=device)
        self.rows: list[Rows] = []

    def forward(self, batch: Sequence[PassSequence]) -> list[Rows]:
        rows = super().forward(batch)
        if hasattr(self, "rows"):
            self.rows += rows
        return rows

    @property
    def num_copied(self) -> list[int]:
        return [rows.num_copied for rows in self.rows if isinstance(rows, DeviceRows)]


@cache
def models(device: Device) -> tuple[RecordingModel, RecordingModel]:
    """A target, and a draft that is often right."""
    return RecordingModel(device), RecordingModel(device, noise=0.01)


CHOOSING = ChoosingCpu()


def said(settings: SequenceSettings, device: Device) -> tuple[list[int], list[tuple[int, ...]]]:
    """The text, and how many rows each pass of the target and of the draft had."""
    target, drafting = models(device)
    target.rows, drafting.rows = [], []

    async def run() -> list[int]:
        verifier = Verifier(target, VerifierLimits(max_speculative_tokens=8))
        proposer = draft(lambda: ModelDrafter(drafting))
        workers = FixedWorkers(
            [FaultyConnection(FaultyDevice(lambda: verifier))], [FaultyConnection(proposer)]
        )
        try:
            return await answer(new_sequence(settings, PROMPT), workers, ((5, 2, 1.0),))
        finally:
            verifier.abandon("")
            proposer.stepper.abandon("")

    return run_virtually(run()), [rows.shape for rows in [*target.rows, *drafting.rows]]


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_settings_need_no_row(kind: str) -> None:
    expected = said(PLAIN[kind], CPU)
    assert said(PLAIN[kind], CHOOSING) == expected
    target, drafting = models(CHOOSING)
    for model in target, drafting:
        assert sum(len(rows) for rows in model.rows if isinstance(rows, DeviceRows)) > 8
        assert set(model.num_copied) == {0}
        assert not any(len(rows) for rows in model.rows if not isinstance(rows, DeviceRows))
    assert max(len(rows) for rows in target.rows) == 6, "there were drafts"


@pytest.mark.parametrize("kind", CHANGED)
def test_settings_that_need_the_rows_get_them(kind: str) -> None:
    assert said(CHANGED[kind], CHOOSING) == said(CHANGED[kind], CPU)
    target, _ = models(CHOOSING)
    assert not target.num_copied


def test_rows_are_looked_at_only_as_long_as_stop_tokens_are_banned() -> None:
    settings = replace(SEEDED, stop_token_ids=STOPS, min_length=len(PROMPT) + 7)
    expected = said(settings, CPU)
    assert said(settings, CHOOSING) == expected
    assert len(expected[0]) > 7
    for model in models(CHOOSING):
        assert 0 < sum(model.num_copied) <= 7 + 6  # those of rejected drafts are made again


def test_the_rows_of_a_tree_need_not_be_copied() -> None:
    target, _ = models(CHOOSING)
    expected, _ = said(SEEDED, CPU)
    start = len(PROMPT)

    def following(sequence: EngineSequence, number: int) -> list[int]:
        return expected[len(sequence.log) - start :][:number]

    verifier = Verifier(target, VerifierLimits(max_speculative_tokens=8))
    target.rows = []

    async def run() -> list[int]:
        workers = FixedWorkers(
            [FaultyConnection(FaultyDevice(lambda: verifier))],
            [FaultyConnection(draft(lambda: TreeDrafter(following, VOCAB_SIZE, 1)))],
        )
        try:
            return await answer(new_sequence(SEEDED, PROMPT), workers, ((8, 2, 1.0),))
        finally:
            verifier.abandon("")

    assert run_virtually(run()) == expected
    assert set(target.num_copied) == {0}
    assert len(target.num_copied) < len(expected), "drafts of trees were accepted"


def test_a_pass_of_many_sequences_says_of_each_row_what_the_sampler_says() -> None:
    kinds: list[SequenceSettings | None] = [*PLAIN.values(), CHANGED["biased"], None] * 3
    # Twice as many rows of one kind as are done at once, and some more.
    shares = [(70, 70), *((3 + index, index % 4) for index in range(1, len(kinds)))]

    def rows_of(model: RecordingModel) -> list[Rows]:
        batch = []
        for index, (settings, (length, num_logits)) in enumerate(zip(kinds, shares, strict=True)):
            own = text(length, VOCAB_SIZE, seed=index)
            kv = model.kv_cache.open(own, salt=str(index))
            assert model.kv_cache.reserve(kv, len(own))
            wants = index > 9
            batch.append(
                PassSequence(kv, own, num_logits, settings=settings, wants_confidence=wants)
            )
        rows = model.forward(batch)
        for part in batch:
            model.kv_cache.release(part.kv)
        return rows

    plain, chosen = (rows_of(models(device)[0]) for device in (CPU, CHOOSING))
    for index, (settings, rows, device_rows) in enumerate(zip(kinds, plain, chosen, strict=True)):
        length, num_logits = shares[index]
        assert np.array_equal(host_rows(device_rows), rows)
        assert device_rows.shape == (num_logits, VOCAB_SIZE)
        for number, row in enumerate(rows):
            position = length - num_logits + number + 1
            found = chosen_token(device_rows, number)
            if settings is None or settings.logit_bias:
                assert found is None
                continue
            assert found is not None
            assert found.token_id == choose_token(row, settings, position, ())
            sure = confidence(row, settings, position, ()) if index > 9 else 0.0
            assert found.confidence == pytest.approx(sure, rel=1e-4)


def test_a_row_that_is_looked_at_is_counted() -> None:
    logits = torch.arange(12.0).reshape(3, 4)
    rows = DeviceRows(logits, [None, ChosenToken(3, 0.5), None])
    assert (rows[-1].tolist(), rows[0:2].shape, rows.num_copied) == ([8, 9, 10, 11], (2, 4), 3)
    assert (rows.chosen(1), rows.chosen(-1)) == (ChosenToken(3, 0.5), None)


def test_rows_without_numbers_fail_the_round_and_end_the_proposal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, drafting = models(CHOOSING)
    for model in target, drafting:
        run = model._runner.run
        monkeypatch.setattr(
            model._runner, "run", lambda plan, run=run: (run(plan)[0] * torch.nan, run(plan)[1])
        )
    span = TokenLog.of(PROMPT).span(0)
    verifier = Verifier(target, VerifierLimits())
    assert verifier.accept(VerifyRound("a", 1, span, Drafts([1, 2]), 1, SEEDED)) is None
    (result,) = verifier.step() or []
    assert result.error is not None
    assert result.error.reason is RoundErrorReason.INTERNAL
    assert f"position {len(PROMPT)} hold nan" in result.error.message
    proposer = Proposer(ModelDrafter(drafting), 8)
    assert proposer.accept(ProposeRound("a", 1, span, 4, SEEDED)) is None
    (proposed,) = proposer.step() or []
    assert (proposed.drafts.token_ids, proposed.fault) == ((), DraftFault.NOT_A_NUMBER)
    verifier.abandon("")
    proposer.abandon("")
