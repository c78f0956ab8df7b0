"""Hidden states on their way from the target to a draft that is fed with them."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import Fault, FaultyConnection, FaultyDevice, FixedWorkers
from fed_drafter import FedDrafter
from lossless_runs import LAW, LIMITS, PROMPT, SEEDED, answer, new_sequence
from plain_text import plain_text
from virtual_time import run_virtually

from draft_service.proposer import Proposer
from paceline.engine.feature_rows import FeatureRows
from paceline.engine.table_model import TableModel
from paceline.rounds import (
    Features,
    ProposeRound,
    RoundErrorReason,
    VerifyResult,
    VerifyRound,
)
from paceline.token_log import TokenLog
from target_service.verifier import Verifier

WINDOW = 8
PATIENT = ((3, 1, 1.0),)


def fed_draft(*faults: Fault) -> FaultyDevice:
    device = FaultyDevice(lambda: Proposer(FedDrafter(LAW), 8, feature_size=2), faults)
    device.wants_features = True
    return device


def target(*faults: Fault) -> FaultyDevice:
    limits = replace(LIMITS, feature_window=WINDOW)
    return FaultyDevice(lambda: Verifier(TableModel(LAW, cell_size=4), limits), faults)


def accepted(
    targets: list[tuple[Fault, ...]], drafts: list[tuple[Fault, ...]]
) -> tuple[list[int], list[int]]:
    """The answer, and the number of rows at each proposal, all drafts together."""

    async def run() -> tuple[list[int], list[int]]:
        devices = [fed_draft(*faults) for faults in drafts]
        workers = FixedWorkers(
            [FaultyConnection(target(*faults)) for faults in targets],
            [FaultyConnection(device) for device in devices],
        )
        said = await answer(new_sequence(SEEDED), workers, PATIENT)
        return said, [n for d in devices for n in d.stepper._drafter.num_rows]

    said, num_rows = run_virtually(run())
    assert said == plain_text(LAW, PROMPT, SEEDED)
    return said, num_rows


def test_every_proposal_has_the_rows_of_all_tokens_but_the_last() -> None:
    said, num_rows = accepted([()], [()])
    # 16 tokens: the first without drafts, then rounds of 4. Each proposal looks 4 times.
    assert num_rows[::4] == [WINDOW, WINDOW + 4, WINDOW + 8, WINDOW + 12][: len(num_rows[::4])]
    assert len(said) == 16


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE, Fault.DOUBLED, Fault.VERY_LATE])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_rows_whose_proposal_was_lost_come_again(fault: Fault, place: int) -> None:
    _, num_rows = accepted([()], [(Fault.NONE,) * place + (fault,)])
    assert max(num_rows) > WINDOW


@pytest.mark.parametrize("fault", [Fault.WIPED, Fault.BROKEN, Fault.FAILED])
def test_another_draft_in_mid_answer_is_fed_from_the_window_on(fault: Fault) -> None:
    accepted([()], [(Fault.NONE, fault), ()])


@pytest.mark.parametrize("fault", [Fault.WIPED, Fault.BROKEN, Fault.FAILED, Fault.LOST])
def test_a_target_that_has_lost_the_sequence_has_rows_of_it_again(fault: Fault) -> None:
    _, num_rows = accepted([(Fault.NONE, Fault.NONE, fault), ()], [()])
    assert max(num_rows) > WINDOW


def test_rows_found_in_the_prefix_cache_are_sent_too() -> None:
    verifier = Verifier(TableModel(LAW, cell_size=4), replace(LIMITS, feature_window=WINDOW))
    sent = []
    for sequence_id in ("a", "b"):
        span = TokenLog.of(PROMPT).span(0)
        verifier.accept(
            VerifyRound(sequence_id, 1, span, max_new_tokens=1, settings=SEEDED, features_from=0)
        )
        while not (results := verifier.step() or []):
            pass
        sent.append(results[0].features)
    assert sent[0] == sent[1]
    assert sent[0] is not None
    assert (sent[0].start, sent[0].num_rows) == (len(PROMPT) - WINDOW, WINDOW)


def test_only_the_last_result_of_a_round_brings_rows_and_none_unasked() -> None:
    verifier = Verifier(TableModel(LAW, cell_size=4), LIMITS)
    brought: dict[int | None, list[int]] = {}
    for number, features_from in enumerate((None, len(PROMPT) - 1, 9999)):
        span = TokenLog.of(PROMPT).span(0)
        round = VerifyRound("a", number, span, max_new_tokens=3, settings=SEEDED)
        verifier.accept(replace(round, features_from=features_from))
        results: list[VerifyResult] = []
        while verifier.has_work:
            results += verifier.step() or []
        brought[features_from] = [r.features.num_rows if r.features else -1 for r in results]
    assert brought == {None: [-1] * 3, len(PROMPT) - 1: [-1, -1, 3], 9999: [-1, -1, -1]}


def rows_of(start: int, *numbers: float) -> Features:
    return Features(start, len(numbers), np.array(numbers, "<f2").tobytes())


def test_rows_are_kept_in_one_run_up_to_the_newest() -> None:
    rows = FeatureRows(1)
    assert (rows.start, rows.end) == (0, 0)
    rows.add(rows_of(5, 5, 6, 7))
    assert (rows.start, rows.end) == (5, 8)
    rows.add(rows_of(7, 70, 80))
    assert rows.rows[:, 0].tolist() == [5, 6, 70, 80]
    rows.cut(8)
    assert (rows.start, rows.end, rows.rows[-1, 0]) == (5, 8, 70)
    rows.add(rows_of(10, 10))
    assert (rows.start, rows.end) == (10, 11), "those before the gap are of no use"
    rows.add(rows_of(3, 3, 4))
    assert (rows.start, rows.end) == (3, 5)
    rows.cut(2)
    assert len(rows.rows) == 0


def test_rows_of_another_size_are_refused_and_harm_nobody() -> None:
    proposer = Proposer(FedDrafter(LAW), 8, feature_size=2)
    span = TokenLog.of(PROMPT).span(0)
    right = rows_of(0, *range(len(PROMPT) * 2 - 2))
    other = ProposeRound("b", 1, span, 3, SEEDED)
    assert proposer.accept(other) is None
    result = proposer.accept(ProposeRound("a", 1, span, 3, SEEDED, features=right))
    assert result is not None
    assert result.error is not None
    assert result.error.reason is RoundErrorReason.INVALID_ARGUMENT
    assert "features.data" in result.error.message
    assert proposer.is_waiting("b")
