"""What was generated before: found by its tenant alone, and never more than there is room for."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.earlier_answers import (
    END,
    LEAD,
    MAX_ANSWER,
    MAX_TENANTS,
    EarlierAnswers,
)

TENANTS = ("", "a", "b")
ANSWERS = st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 30)), max_size=40)


def kept(answers: EarlierAnswers, tenant: str) -> list[int]:
    return [id for index in answers.of(tenant) for id in index.token_ids]


@given(ANSWERS)
def test_there_are_never_more_tokens_than_there_is_room_for(answers: list[tuple[str, int]]) -> None:
    earlier = EarlierAnswers(capacity=100)
    for tenant, length in answers:
        earlier.add(tenant, array("I", range(length)), 0)
        assert len(earlier) <= 100
        assert len(earlier) == sum(len(kept(earlier, tenant)) for tenant in TENANTS)


@given(ANSWERS)
def test_a_tenant_finds_its_own_answers_alone(answers: list[tuple[str, int]]) -> None:
    earlier = EarlierAnswers(capacity=400)
    for tenant, length in answers:
        earlier.add(tenant, array("I", [ord(tenant or "-")] * length), 0)
    for tenant in TENANTS:
        assert set(kept(earlier, tenant)) <= {ord(tenant or "-"), END}


def test_an_answer_is_kept_with_a_little_of_its_prompt() -> None:
    earlier = EarlierAnswers(1000)
    earlier.add("a", array("I", range(20)), 15)
    assert kept(earlier, "a") == [*range(15 - LEAD, 20), END]


def test_a_prompt_without_an_answer_is_not_kept() -> None:
    earlier = EarlierAnswers(1000)
    earlier.add("a", array("I", range(20)), 20)
    assert earlier.of("a") == ()


def test_of_a_long_answer_the_end_is_kept() -> None:
    earlier = EarlierAnswers(10 * MAX_ANSWER)
    earlier.add("a", array("I", range(2 * MAX_ANSWER)), 5)
    assert kept(earlier, "a") == [*range(MAX_ANSWER - LEAD, 2 * MAX_ANSWER), END]


def test_the_newest_answers_stay() -> None:
    earlier = EarlierAnswers(capacity=100)
    for number in range(30):
        earlier.add("a", array("I", [number] * 9), 0)
    assert set(kept(earlier, "a")) == {*range(26, 30), END}


def test_the_tenant_that_was_here_longest_ago_makes_room() -> None:
    earlier = EarlierAnswers(capacity=40)
    for tenant in "abcd":
        earlier.add(tenant, array("I", range(9)), 0)
    earlier.of("a")
    earlier.add("e", array("I", range(9)), 0)
    assert [bool(earlier.of(tenant)) for tenant in "abcde"] == [True, False, True, True, True]


def test_of_very_many_tenants_the_last_ones_stay() -> None:
    earlier = EarlierAnswers(capacity=2**19)
    for number in range(MAX_TENANTS + 7):
        earlier.add(str(number), array("I", [1]), 0)
    assert earlier.of("6") == ()
    assert kept(earlier, "7") == [1, END]
    assert len(earlier) == 2 * MAX_TENANTS
