"""The suffix drafter: what it copies, from whom, how far, and what it forgets."""

import gc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.suffix import MAX_CHUNK, SuffixDrafter
from draft_service.proposer import Proposal, Proposer
from paceline.engine.sequences import EngineSequence
from paceline.rounds import AcceptanceRule, Drafts, ProposeRound, SequenceSettings
from paceline.token_log import TokenLog

SETTINGS = SequenceSettings(max_length=10**6)
ANSWER = [11, 12, 13, 14, 15, 16, 17, 18]


class Owner:
    """Sends rounds to a worker with this drafter."""

    def __init__(self, drafter: SuffixDrafter | None = None) -> None:
        self.drafter = drafter or SuffixDrafter()
        self.proposer = Proposer(self.drafter, 16)
        self.num_rounds = 0

    def drafts(
        self,
        token_ids: list[int],
        num_wanted: int = 8,
        *,
        id: str = "a",
        min_confidence: float = 0.0,
        settings: SequenceSettings = SETTINGS,
    ) -> Drafts:
        self.num_rounds += 1
        span = TokenLog.of(token_ids).span(0)
        round = ProposeRound(
            id, self.num_rounds, span, num_wanted, settings, min_confidence=min_confidence
        )
        result = self.proposer.accept(round)
        while result is None:
            result = next(iter(self.proposer.step() or []), None)
        assert result.error is None
        return result.drafts

    def token_ids(self, token_ids: list[int], num_wanted: int = 8, **changes: object) -> list[int]:
        return list(self.drafts(token_ids, num_wanted, **changes).token_ids)  # type: ignore[arg-type]

    def answer(self, token_ids: list[int], settings: SequenceSettings = SETTINGS) -> None:
        """A sequence that has ended."""
        self.drafts(token_ids, id="ended", settings=settings)
        self.proposer.close("ended")


def test_it_goes_on_as_the_text_did() -> None:
    assert Owner().token_ids([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]


def test_a_loop_goes_on_for_as_long_as_asked() -> None:
    assert Owner().token_ids([1, 2, 3] * 2, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_what_has_not_been_said_is_not_proposed() -> None:
    assert Owner().token_ids([1, 2, 3, 4]) == []


def test_nothing_is_proposed_behind_a_stop_token() -> None:
    settings = replace(SETTINGS, stop_token_ids=(4,))
    assert Owner().token_ids([1, 2, 3, 4, 5, 1, 2, 3], settings=settings) == [4]


def test_it_stops_where_all_drafts_together_are_too_unlikely() -> None:
    text = [*range(10), 3, 4]
    whole = Owner().drafts(text)
    assert list(whole.token_ids[:5]) == [5, 6, 7, 8, 9]
    chance, chances = 1.0, []
    for confidence in whole.confidences:
        chance *= confidence
        chances.append(chance)
    for length in (0, 1, 3):
        least = (chances[length] + chances[length - 1]) / 2 if length else chances[0] + 0.01
        assert len(Owner().drafts(text, min_confidence=least).token_ids) == length


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 6))
def test_every_draft_has_followed_the_tokens_before_it(text: list[int], num_wanted: int) -> None:
    drafts = Owner().drafts(text, num_wanted)
    known = list(text)
    for token_id, confidence in zip(drafts.token_ids, drafts.confidences, strict=True):
        pairs = zip(known, known[1:], strict=False)
        assert (known[-1], token_id) in pairs
        assert 0 < confidence <= 1  # rounded
        known.append(token_id)


def test_an_earlier_answer_is_copied_from() -> None:
    owner = Owner()
    owner.answer([1, 2, *ANSWER], replace(SETTINGS, prompt_length=2))
    assert owner.token_ids([9, *ANSWER[:5]], 2) == ANSWER[5:7]
    assert owner.token_ids([9, *ANSWER[:5]], 8) == ANSWER[5:], "nothing follows its end"


def test_the_answers_of_one_tenant_are_never_proposed_to_another() -> None:
    owner = Owner()
    owner.answer(ANSWER, replace(SETTINGS, cache_salt="red"))
    for salt in ("", "blue", "re"):
        assert owner.token_ids(ANSWER[:5], settings=replace(SETTINGS, cache_salt=salt)) == []
    assert owner.token_ids(ANSWER[:5], settings=replace(SETTINGS, cache_salt="red"))


def test_the_answers_of_one_tenant_never_count_for_another() -> None:
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4]
    blue = replace(SETTINGS, cache_salt="blue")
    owner = Owner()
    for token_id in (5, 6, 7):
        owner.answer([1, 2, 3, 4, token_id] * 3, replace(SETTINGS, cache_salt="red"))
    assert owner.drafts(text, settings=blue) == Owner().drafts(text, settings=blue)
    red = replace(SETTINGS, cache_salt="red")
    assert owner.drafts(text, settings=red, id="b") != Owner().drafts(text, settings=red)


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
def test_where_draws_judge_the_drafts_no_earlier_answer_is_looked_at(rule: AcceptanceRule) -> None:
    owner = Owner()
    owner.answer(ANSWER)
    sampled = replace(SETTINGS, temperature=1.0, acceptance_rule=rule)
    assert owner.token_ids(ANSWER[:5], settings=sampled) == []
    assert owner.token_ids([*ANSWER, *ANSWER[:5]], 2, settings=sampled, id="b") == ANSWER[5:7]
    assert owner.token_ids(ANSWER[:5], settings=replace(sampled, temperature=0.0), id="c")


def test_text_that_was_taken_back_is_forgotten() -> None:
    owner = Owner()
    owner.drafts([1, 2, 3, 4, 1, 2, 3, 4])
    assert owner.token_ids([1, 2, 3, 5, 6, 1, 2], 2) == [3, 5]
    owner.proposer.close("a")
    assert owner.token_ids([9, 9, 1, 2, 3, 5], 1, id="b") == [6]
    assert owner.token_ids([9, 8, 2, 3, 4, 1], 1, id="c") == [], "it was never said"


def test_after_a_failure_it_drafts_again() -> None:
    owner = Owner()
    owner.drafts([1, 2, 3, 1, 2])
    owner.proposer.abandon("the drafter is out of order")
    assert len(owner.drafter.table) == owner.drafter.num_indexed_tokens == 0
    assert owner.token_ids([1, 2, 3, 1, 2], 1) == [3]


def test_a_long_prompt_keeps_nobody_waiting() -> None:
    owner = Owner()
    proposals = [
        Proposal(EngineSequence(id, SETTINGS, 1, TokenLog.of(token_ids)), 1)
        for id, token_ids in (("long", range(2 * MAX_CHUNK + 5)), ("short", [1, 2, 1]))
    ]
    num_steps = []
    for step in range(4):
        owner.drafter.extend([p for p in proposals if not p.is_done])
        num_steps += [(p.sequence.sequence_id, step) for p in proposals if p.is_done]
    assert num_steps[0] == ("short", 0)
    assert ("long", 2) in num_steps and ("long", 1) not in num_steps
    assert proposals[1].token_ids == [2]


def test_indexes_take_no_more_room_than_there_is() -> None:
    drafter = SuffixDrafter(indexed_tokens=25)
    owner = Owner(drafter)
    for id in "abc":
        assert owner.token_ids([1, 2, 3, 4] * 3, 1, id=id) == [1]
        assert drafter.num_indexed_tokens <= 25
    assert owner.token_ids([1, 2, 3, 4] * 3, 1, id="a") == [1], "indexed again"
    assert owner.token_ids([1, 2] * 15, 1, id="d") == [], "longer than all the room"
    assert drafter.num_indexed_tokens <= 25


def test_an_index_goes_with_its_sequence() -> None:
    owner = Owner()
    owner.drafts([1, 2, 3, 1])
    assert owner.drafter.num_indexed_tokens == 4
    owner.proposer.close("a")
    gc.collect()
    assert owner.drafter.num_indexed_tokens == 0
