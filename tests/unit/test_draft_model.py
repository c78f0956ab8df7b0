"""A drafter with a model says what its model would say with the target's noise."""

from dataclasses import replace
from math import prod

import pytest
from plain_text import plain_text

from draft_service.drafters import draft_model
from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.token_choice import USUAL_CONFIDENCE
from draft_service.proposer import Proposal
from paceline.engine.sequences import EngineSequence
from paceline.engine.table_model import TableLaw, TableModel
from paceline.rounds import SequenceSettings
from paceline.token_log import TokenLog

LAW = TableLaw(4, vocab_size=16)
PROMPT = [3, 1, 4, 1, 5, 9]
GREEDY = SequenceSettings(max_length=200)
SEEDED = replace(GREEDY, temperature=1.0, seed=9)
PENALIZED = replace(
    SEEDED,
    prompt_length=len(PROMPT),
    presence_penalty=1.0,
    frequency_penalty=0.5,
    repetition_penalty=1.3,
)


def new_drafter(**room: int) -> ModelDrafter:
    return ModelDrafter(TableModel(LAW, cell_size=4, **room))


def begun(
    drafter: ModelDrafter,
    prompt: list[int] | None = None,
    settings: SequenceSettings = GREEDY,
    sequence_id: str = "a",
    start: int = 0,
) -> EngineSequence:
    span = TokenLog.of(PROMPT if prompt is None else prompt).span(start)
    sequence = drafter.table.sync(sequence_id, span, settings)
    assert isinstance(sequence, EngineSequence)
    return sequence


def complete(drafter: ModelDrafter, *proposals: Proposal) -> list[list[int]]:
    """Step until all are done."""
    waiting = list(proposals)
    while waiting:
        drafter.extend(waiting)
        waiting = [proposal for proposal in waiting if not proposal.is_done]
    return [proposal.token_ids for proposal in proposals]


@pytest.mark.parametrize(
    "settings",
    [GREEDY, SEEDED, PENALIZED, replace(PENALIZED, temperature=0.0)],
    ids=["greedy", "seeded", "penalized", "greedy and penalized"],
)
def test_drafts_are_the_models_own_text(settings: SequenceSettings) -> None:
    drafter = new_drafter()
    proposal = Proposal(begun(drafter, settings=settings), 12)
    assert complete(drafter, proposal) == [plain_text(LAW, PROMPT, settings)[:12]]


def test_penalties_count_the_drafts_before_a_draft() -> None:
    unpenalized = replace(PENALIZED, presence_penalty=0.0, frequency_penalty=0.0)
    assert plain_text(LAW, PROMPT, unpenalized)[:12] != plain_text(LAW, PROMPT, PENALIZED)[:12]


def test_each_step_adds_one_token_to_all_at_once() -> None:
    drafter = new_drafter()
    proposals = [
        Proposal(begun(drafter, [index, *PROMPT], SEEDED, str(index)), 3) for index in range(3)
    ]
    for num_steps in range(1, 4):
        drafter.extend(proposals)
        assert [len(proposal.token_ids) for proposal in proposals] == [num_steps] * 3
    expected = [plain_text(LAW, [index, *PROMPT], SEEDED)[:3] for index in range(3)]
    assert [proposal.token_ids for proposal in proposals] == expected


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_token_more_is_made_as_long_as_it_is_likely_to_pay(length: int) -> None:
    """What has been made is proposed, however unsure: its step is paid."""
    drafter = new_drafter()
    whole = Proposal(begun(drafter, settings=SEEDED), 8)
    complete(drafter, whole)
    likely = [prod(whole.confidences[:n]) * USUAL_CONFIDENCE for n in range(9)]
    least = (likely[length - 1] + likely[length]) / 2
    drafter = new_drafter()
    proposal = Proposal(begun(drafter, settings=SEEDED), 8, min_step_confidence=least)
    assert complete(drafter, proposal) == [whole.token_ids[:length]]
    assert proposal.num_steps == length


def test_no_more_steps_are_made_than_there_is_time_for() -> None:
    drafter = new_drafter()
    whole = Proposal(begun(drafter, settings=SEEDED), 8)
    complete(drafter, whole)
    drafter = new_drafter()
    proposal = Proposal(begun(drafter, settings=SEEDED), 8, max_steps=3)
    assert complete(drafter, proposal) == [whole.token_ids[:3]]
    assert proposal.num_steps == 3


def test_a_long_prompt_takes_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "MAX_CHUNK", 4)
    drafter = new_drafter()
    proposal = Proposal(begun(drafter, PROMPT * 2), 2)
    drafter.extend([proposal])
    drafter.extend([proposal])
    assert proposal.token_ids == []
    assert complete(drafter, proposal) == [plain_text(LAW, PROMPT * 2, GREEDY)[:2]]


def test_what_was_drafted_and_rejected_leaves_no_trace() -> None:
    drafter = new_drafter()
    first = Proposal(begun(drafter), 4)
    (said,) = complete(drafter, first)
    wrong = (said[1] + 1) % 16
    text = [*PROMPT, said[0], wrong]
    second = Proposal(begun(drafter, text, start=len(PROMPT)), 4)
    assert complete(drafter, second) == [plain_text(LAW, text, GREEDY)[:4]]


def test_accepted_drafts_are_not_run_again() -> None:
    drafter = new_drafter()
    (said,) = complete(drafter, Proposal(begun(drafter), 4))
    sequence = begun(drafter, [*PROMPT, *said], start=len(PROMPT))
    assert list(sequence.computed) == [*PROMPT, *said[:3]]


@pytest.mark.parametrize("room", [{"num_cells": 2}, {"max_model_len": 8}])
def test_without_room_there_are_fewer_drafts_or_none(room: dict[str, int]) -> None:
    drafter = new_drafter(**room)
    assert [len(ids) for ids in complete(drafter, Proposal(begun(drafter), 9))] == [3]
    longer = begun(drafter, [*PROMPT, 1, 2, 3], start=len(PROMPT))
    assert complete(drafter, Proposal(longer, 9)) == [[]]


def test_in_a_full_pool_the_older_sequence_drafts_and_the_newer_one_goes_without() -> None:
    drafter = new_drafter(num_cells=3)
    older, newer = (Proposal(begun(drafter, settings=SEEDED, sequence_id=id), 3) for id in "ab")
    assert complete(drafter, older, newer) == [plain_text(LAW, PROMPT, SEEDED)[:3], []]
    drafter.table.close("a")
    again = Proposal(newer.sequence, 3)
    assert complete(drafter, again) == [plain_text(LAW, PROMPT, SEEDED)[:3]]


def test_tokens_that_the_model_does_not_know_end_the_proposal_and_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = new_drafter()
    for _ in range(2):
        assert complete(drafter, Proposal(begun(drafter, [1, 16]), 3)) == [[]]
    assert [record.getMessage() for record in caplog.records] == [
        "no drafts behind the token 16: the draft model has rows for the tokens 0 to 15"
    ]


def test_settings_that_leave_no_token_end_the_proposal_and_harm_nobody() -> None:
    drafter = new_drafter()
    bans = tuple((token_id, -100.0) for token_id in range(16))
    hopeless = Proposal(begun(drafter, settings=replace(GREEDY, logit_bias=bans)), 3)
    other = Proposal(begun(drafter, sequence_id="b"), 3)
    assert complete(drafter, hopeless, other) == [[], plain_text(LAW, PROMPT, GREEDY)[:3]]


def test_a_stop_token_is_the_last_draft() -> None:
    text = plain_text(LAW, PROMPT, SEEDED)
    stop = next(id for index, id in enumerate(text) if index > 0 and id not in text[:index])
    drafter = new_drafter()
    settings = replace(SEEDED, stop_token_ids=(stop,))
    proposal = Proposal(begun(drafter, settings=settings), 20)
    assert complete(drafter, proposal) == [text[: text.index(stop) + 1]]


def test_the_state_of_the_pool_is_told() -> None:
    drafter = new_drafter(num_cells=8)
    complete(drafter, Proposal(begun(drafter), 2))
    load = drafter.load(num_waiting=3)
    assert (load.num_sequences, load.num_waiting, load.kv_used, load.kv_capacity) == (1, 3, 8, 32)
