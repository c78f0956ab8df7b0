"""The loop of rounds: what waits for what, what is given up when, what is left behind."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest
from fakes import PASS_S, Fault, FaultyConnection, FaultyDevice, FixedWorkers
from lossless_runs import LAW, ScriptedSpeculation, draft, new_sequence, target
from plain_text import plain_text
from virtual_time import run_virtually

from coordinator.decode_loop import MAX_LOSSES, Committed, decode
from coordinator.sequence import STALL_TIMEOUT_S, RoundRefused, Sequence
from draft_service.drafters.draft_model import ModelDrafter
from paceline.engine.table_model import TableModel
from paceline.errors import Unavailable
from paceline.rounds import SequenceSettings
from paceline.token_log import TokenLog

PROMPT = [3, 1, 4, 1, 5]
SEEDED = SequenceSettings(max_length=len(PROMPT) + 16, temperature=1.0, seed=11)
TEXT = plain_text(LAW, PROMPT, SEEDED)
PATIENT = ((4, 1, 1.0),)
ALONE = ((0, 100, 0.0),)
SINGLE = ((0, 1, 0.0),)


def self_draft(*faults: Fault) -> FaultyDevice:
    return draft(lambda: ModelDrafter(TableModel(LAW)), faults)


def begun() -> Sequence:
    return new_sequence(SEEDED, PROMPT)


def rounds_of(
    sequence: Sequence,
    targets: list[FaultyDevice],
    drafts: list[FaultyDevice],
    plan: tuple[tuple[int, int, float], ...] = PATIENT,
) -> AsyncGenerator[Committed, None]:
    workers = FixedWorkers(
        [FaultyConnection(device) for device in targets],
        [FaultyConnection(device) for device in drafts],
    )
    return decode(sequence, workers, ScriptedSpeculation(plan))


async def all_of(rounds: AsyncGenerator[Committed, None]) -> list[Committed]:
    return [committed async for committed in rounds]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_right_drafts_commit_several_tokens_a_pass() -> None:
    async def run() -> list[Committed]:
        return await all_of(rounds_of(begun(), [target(LAW)], [self_draft()]))

    first, *others = run_virtually(run())
    assert (first.token_ids, first.num_draft_tokens) == ((TEXT[0],), 0)
    assert [len(committed.token_ids) for committed in others] == [5, 5, 5]
    assert all(committed.num_accepted_tokens == 4 for committed in others)
    assert all(committed.propose and not committed.propose.failure for committed in others)


def test_the_first_token_never_waits_and_the_draft_warms_up_meanwhile() -> None:
    async def run() -> None:
        device, drafter = target(LAW), self_draft(Fault.LOST)
        async with aclosing(rounds_of(begun(), [device], [drafter])) as rounds:
            first = await anext(rounds)
            assert now() < 2 * PASS_S
            assert first.propose is None
            assert device.num_rounds == drafter.num_rounds == 1

    run_virtually(run())


def test_without_drafts_the_target_goes_on_alone_in_one_round() -> None:
    async def run() -> None:
        device, drafter = target(LAW), self_draft()
        sequence = begun()
        committed = await all_of(rounds_of(sequence, [device], [drafter], ALONE))
        assert [c.token_ids for c in committed] == [(token_id,) for token_id in TEXT]
        assert (device.num_rounds, drafter.num_rounds) == (1, 0)

    run_virtually(run())


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.VERY_LATE])
def test_a_proposal_that_is_not_there_in_time_is_done_without(fault: Fault) -> None:
    async def run() -> None:
        drafter = self_draft(Fault.NONE, fault)
        rounds = rounds_of(begun(), [target(LAW)], [drafter], ((4, 1, 0.1),))
        first, second, third, *_ = await all_of(rounds)
        assert first.token_ids == (TEXT[0],)
        assert second.token_ids == (TEXT[1],)
        assert second.propose is not None
        assert second.propose.failure == "timeout"
        assert len(third.token_ids) == 5, "the same draft is asked again"
        assert now() < 1.0

    run_virtually(run())


@pytest.mark.parametrize("fault", [Fault.FAILED, Fault.BROKEN])
def test_a_draft_that_is_lost_is_followed_by_another(fault: Fault) -> None:
    async def run() -> None:
        drafts = [self_draft(Fault.NONE, fault), self_draft()]
        _, second, third, *_ = await all_of(rounds_of(begun(), [target(LAW)], drafts))
        assert second.propose is not None
        assert second.propose.failure == "lost"
        assert (len(second.token_ids), len(third.token_ids)) == (1, 5)
        assert drafts[0].num_rounds == 2
        assert drafts[1].num_rounds > 1
        assert drafts[0].stepper.load.num_sequences == 0

    run_virtually(run())


def test_a_target_that_stalls_is_followed_by_another() -> None:
    async def run() -> None:
        targets = [target(LAW, [Fault.NONE, Fault.LOST]), target(LAW)]
        committed = await all_of(rounds_of(begun(), targets, [], SINGLE))
        assert [id for c in committed for id in c.token_ids] == TEXT
        assert STALL_TIMEOUT_S < now() < STALL_TIMEOUT_S + 1
        assert [device.num_rounds for device in targets] == [2, len(TEXT) - 1]
        await asyncio.sleep(PASS_S)
        assert targets[0].stepper.load.num_sequences == 0

    run_virtually(run())


def test_a_round_that_no_target_survives_is_given_up() -> None:
    async def run() -> None:
        device = target(LAW, [Fault.NONE] + [Fault.FAILED] * 100)
        said: list[int] = []
        with pytest.raises(Unavailable, match="injected"):
            async for committed in rounds_of(begun(), [device], [], SINGLE):
                said += committed.token_ids
        assert said == TEXT[:1]
        assert device.num_rounds == 1 + MAX_LOSSES + 1

    run_virtually(run())


def test_losses_with_tokens_in_between_are_not_counted_together() -> None:
    async def run() -> list[Committed]:
        device = target(LAW, [Fault.NONE, Fault.FAILED] * (MAX_LOSSES + 2))
        settings = replace(SEEDED, max_length=len(PROMPT) + MAX_LOSSES + 4)
        return await all_of(rounds_of(new_sequence(settings, PROMPT), [device], [], SINGLE))

    assert len(run_virtually(run())) == MAX_LOSSES + 4


def test_a_round_that_can_never_work_is_refused_at_once() -> None:
    async def run() -> None:
        targets = [target(LAW), target(LAW)]
        too_long = replace(SEEDED, max_length=100_000)
        with pytest.raises(RoundRefused, match="settings.max_length: 100000"):
            await all_of(rounds_of(new_sequence(too_long, PROMPT), targets, []))
        assert [device.num_rounds for device in targets] == [1, 0]

    run_virtually(run())


@pytest.mark.parametrize("num_heard", [0, 1, 2])
@pytest.mark.parametrize("plan", [PATIENT, ALONE])
def test_a_loop_that_is_left_frees_its_sequences(
    num_heard: int, plan: tuple[tuple[int, int, float], ...]
) -> None:
    async def run() -> None:
        devices = [target(LAW), self_draft()]
        rounds = rounds_of(begun(), devices[:1], devices[1:], plan)
        task = asyncio.ensure_future(anext(rounds))
        for _ in range(num_heard):
            await task
            task = asyncio.ensure_future(anext(rounds))
        await asyncio.sleep(PASS_S / 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await rounds.aclose()
        await asyncio.sleep(2 * PASS_S)
        assert [device.stepper.load.num_sequences for device in devices] == [0, 0]
        assert not any(device.stepper.has_work for device in devices)

    run_virtually(run())


def test_a_result_adds_only_what_is_new() -> None:
    sequence = Sequence(SEEDED, TokenLog.of([1, 2, 3]), num_prompt_tokens=2)
    assert sequence.commit(3, [4, 5]) == (4, 5)
    assert sequence.commit(3, [4, 5]) == ()
    assert sequence.commit(4, [5, 6]) == (6,)
    assert sequence.commit(8, [9]) == (), "there is a gap before it"
    assert sequence.commit(6, []) == ()
    assert list(sequence.log.token_ids) == [1, 2, 3, 4, 5, 6]
    assert sequence.num_new_tokens == 4


def test_a_prompt_that_ends_with_a_stop_token_has_not_ended() -> None:
    settings = replace(SEEDED, max_length=4, stop_token_ids=(7,))
    sequence = Sequence(settings, TokenLog.of([1, 7]), num_prompt_tokens=2)
    assert not sequence.has_ended
    sequence.commit(2, [7])
    assert sequence.has_ended
