"""What the verifier refuses and survives: nonsense, full pools, failed passes."""

from dataclasses import replace
from typing import Any

import pytest
from fakes import ScriptedDrafter
from sequence_owner import (
    GREEDY,
    PROMPT,
    SEEDED,
    VOCAB_SIZE,
    Owner,
    RecordingModel,
    new_verifier,
)

from draft_service.proposer import Proposer
from paceline.rounds import ProposeRound, RoundErrorReason, TokenSpan, VerifyRound
from paceline.token_log import TokenLog


def refusal(owner: Owner, round: VerifyRound) -> tuple[RoundErrorReason, str]:
    answer = owner.verifier.accept(round)
    assert answer is not None
    assert answer.error is not None
    assert answer.round == round.round
    assert not owner.verifier.has_work
    return answer.error.reason, answer.error.message


def test_what_a_round_has_waited_before_it_is_placed_counts() -> None:
    owner = Owner(new_verifier())
    span = TokenLog.of([1, 2]).span(0)
    assert owner.verifier.accept(VerifyRound("a", 1, span, settings=GREEDY), waited_s=9) is None
    results = owner.verifier.step()
    assert results is not None
    assert results[0].timing.queue_us >= 9_000_000


def test_a_span_with_ids_that_are_no_tokens_is_refused() -> None:
    owner = Owner(new_verifier())
    span = TokenLog.of([1, VOCAB_SIZE]).span(0)
    reason, message = refusal(owner, VerifyRound("a", 1, span, settings=GREEDY))
    assert reason is RoundErrorReason.INVALID_ARGUMENT
    assert f"span.token_ids[1]: {VOCAB_SIZE}" in message


@pytest.mark.parametrize("token_ids", [[], [1] * GREEDY.max_length])
def test_a_sequence_without_tokens_or_without_room_is_refused(token_ids: list[int]) -> None:
    owner = Owner(new_verifier())
    span = TokenLog.of(token_ids).span(0)
    reason, message = refusal(owner, VerifyRound("a", 1, span, settings=GREEDY))
    assert reason is RoundErrorReason.INVALID_ARGUMENT
    assert f"{len(token_ids)} tokens" in message


@pytest.mark.parametrize("room", [{"num_cells": 4, "cell_size": 4}, {"max_model_len": 16}])
def test_a_sequence_larger_than_pool_or_context_is_refused_by_name(room: dict[str, int]) -> None:
    owner = Owner(new_verifier(**room))
    assert owner.verifier.max_length == 16
    too_long = replace(GREEDY, max_length=17)
    reason, message = refusal(owner, VerifyRound("a", 1, owner.log.span(0), settings=too_long))
    assert reason is RoundErrorReason.TOO_LONG
    assert "settings.max_length: 17" in message
    assert "16" in message
    owner.settings = replace(GREEDY, max_length=16)
    owner.ask(max_new_tokens=20)
    assert owner.said == owner.expected


NAN, INF = float("nan"), float("inf")
UNUSABLE: list[dict[str, Any]] = [
    *({"temperature": value} for value in (NAN, INF, -5e-324)),
    *({"top_p": value} for value in (NAN, -0.5, 1.5)),
    *({"min_p": value} for value in (NAN, 1.5, INF)),
    *({"presence_penalty": value} for value in (NAN, -INF)),
    *({"frequency_penalty": value} for value in (NAN, -INF)),
    *({"repetition_penalty": value} for value in (NAN, -1.0, INF)),
    *({"logit_bias": ((3, value),)} for value in (NAN, INF)),
]


@pytest.mark.parametrize("changes", UNUSABLE, ids=str)
def test_settings_that_are_no_numbers_to_count_with_are_refused_by_name(
    changes: dict[str, Any],
) -> None:
    owner = Owner(new_verifier())
    settings = replace(SEEDED, **changes)
    reason, message = refusal(owner, VerifyRound("a", 1, owner.log.span(0), settings=settings))
    assert reason is RoundErrorReason.INVALID_ARGUMENT
    assert message.startswith(f"settings.{next(iter(changes))}: is ")
    assert "expected" in message
    proposer = Proposer(ScriptedDrafter(()), 6)
    proposed = proposer.accept(ProposeRound("a", 1, owner.log.span(0), 3, settings))
    assert proposed is not None
    assert proposed.error is not None
    assert proposed.error.message == message


def test_what_is_not_held_is_asked_for() -> None:
    owner = Owner(new_verifier())
    answer = owner.send(start=3)
    assert answer is not None
    assert (answer.held, answer.round) == (0, 1)
    owner.ask()
    answer = owner.verifier.accept(VerifyRound("a", 9, TokenSpan(2, 12345, ())))
    assert answer is not None
    assert (answer.held, answer.round) == (0, 9)


@pytest.mark.parametrize("num_cells", [8, 9, 13])
@pytest.mark.parametrize("num_drafts", [0, 4])
def test_a_pool_far_too_small_for_the_load_changes_no_text(num_cells: int, num_drafts: int) -> None:
    verifier = new_verifier(num_cells=num_cells, cell_size=4)
    settings = [
        replace(SEEDED if index % 2 else GREEDY, max_length=30 - index) for index in range(6)
    ]
    owners = [Owner(verifier, [index, *PROMPT], s, str(index)) for index, s in enumerate(settings)]

    def send(owner: Owner, start: int) -> None:
        drafts = owner.expected[len(owner.said) :][:num_drafts]
        assert owner.send([*drafts[:-1], 0], start, 1 if num_drafts else 5) is None

    for owner in owners:
        send(owner, 0)
    for _ in range(2000):
        if not verifier.has_work:
            break
        results = verifier.step()
        assert results is not None, "somebody can always go on"
        for result in results:
            owner = owners[int(result.sequence_id)]
            owner.hear(result)
            if owner.said == owner.expected:
                verifier.close(owner.sequence_id)
            elif result.last:
                send(owner, len(owner.log))
    assert [owner.said for owner in owners] == [owner.expected for owner in owners]
    assert verifier.load.num_preemptions > 0
    assert verifier.load.kv_used == verifier.load.num_sequences == 0


def test_older_sequences_that_want_nothing_lose_their_room_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verifier = new_verifier(num_cells=8, cell_size=4)
    settings = replace(GREEDY, max_length=30)
    idle = Owner(verifier, [1] * 20, settings, "idle")
    idle.ask()
    owner = Owner(verifier, [2] * 20, settings, "b")
    assert owner.send() is None
    assert verifier.step() is None, "it may soon be back"
    monkeypatch.setattr("target_service.verifier.MAX_IDLE_S", 0.0)
    (result,) = verifier.step() or []
    owner.hear(result)
    idle.ask(start=len(idle.log), max_new_tokens=3)
    assert (owner.said, idle.said) == (owner.expected[:1], idle.expected[:4])


def test_settings_that_leave_no_token_fail_alone() -> None:
    verifier = new_verifier()
    bans = tuple((token_id, -100.0) for token_id in range(VOCAB_SIZE))
    hopeless = Owner(verifier, settings=replace(GREEDY, logit_bias=bans), sequence_id="b")
    owner = Owner(verifier)
    assert hopeless.send() is owner.send() is None
    failed, result = verifier.step() or []
    assert failed.error is not None
    assert failed.error.reason is RoundErrorReason.INVALID_ARGUMENT
    assert "logit_bias" in failed.error.message
    owner.hear(result)
    assert owner.said == owner.expected[:1]
    assert not verifier.has_work


def test_rows_that_are_not_numbers_fail_alone() -> None:
    verifier = new_verifier()
    model = verifier._model
    assert isinstance(model, RecordingModel)
    model.poison = 9
    sick, owner = Owner(verifier, [9, 1], sequence_id="b"), Owner(verifier)
    assert sick.send() is owner.send() is None
    failed, result = verifier.step() or []
    assert failed.error is not None
    assert failed.error.reason is RoundErrorReason.INTERNAL
    owner.hear(result)
    assert owner.said == owner.expected[:1]


def test_after_a_failed_pass_everything_is_forgotten_and_answered() -> None:
    verifier = new_verifier()
    owner, idle = Owner(verifier), Owner(verifier, sequence_id="b")
    idle.ask()
    assert owner.send() is None
    (failed,) = verifier.abandon("the device is on fire")
    assert (failed.sequence_id, failed.round) == ("a", 1)
    assert failed.error is not None
    assert failed.error.message == "the device is on fire"
    assert verifier.load.num_sequences == verifier.load.kv_used == 0
    owner.ask(max_new_tokens=3)
    assert owner.said == owner.expected[:3]


def test_the_state_and_the_times_are_told() -> None:
    verifier = new_verifier(num_cells=8, cell_size=4)
    owner = Owner(verifier)
    assert owner.send() is None
    assert (verifier.load.num_sequences, verifier.load.num_waiting) == (1, 1)
    assert verifier.is_waiting("a")
    (result,) = verifier.step() or []
    assert (result.timing.pass_rows, result.timing.pass_sequences) == (len(PROMPT), 1)
    assert result.timing.compute_us > 0
    assert (verifier.load.num_waiting, verifier.load.kv_used) == (0, 8)
    assert verifier.load.kv_capacity == 32
    verifier.close("a")
    assert (verifier.load.num_sequences, verifier.load.kv_used) == (0, 0)
    assert verifier.step() is None
