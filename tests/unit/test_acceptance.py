"""The coupled rule: whatever is drafted, the text is the target's own."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.engine.model import Logits
from paceline.engine.sampling import choose_token
from paceline.rounds import Drafts, SequenceSettings
from target_service.acceptance import Acceptance, accept_drafts

VOCAB_SIZE = 6
STOP = 5
PROMPT = (1, 2)
GREEDY = SequenceSettings(max_length=24)
SEEDED = replace(GREEDY, temperature=1.0, seed=7)
PENALIZED = replace(
    SEEDED,
    prompt_length=len(PROMPT),
    presence_penalty=0.5,
    frequency_penalty=0.5,
    repetition_penalty=1.3,
)

Rule = Callable[[Logits, Sequence[int], SequenceSettings, "array[int]"], Acceptance]


@cache
def row_behind(prefix: tuple[int, ...]) -> Logits:
    """The target's logits behind a prefix: unrelated for every two prefixes, the last id rare."""
    known = [token_id % VOCAB_SIZE for token_id in prefix]
    rng = np.random.default_rng(int("1" + "".join(map(str, known)), VOCAB_SIZE + 1))
    row = (rng.standard_normal(VOCAB_SIZE) * 1.5).astype(np.float32)
    row[STOP] -= 2
    return row


def rows_behind(prefix: tuple[int, ...], drafts: Sequence[int]) -> Logits:
    return np.stack([row_behind((*prefix, *drafts[:n])) for n in range(len(drafts) + 1)])


def is_ended(text: tuple[int, ...], settings: SequenceSettings) -> bool:
    return len(text) >= settings.max_length or text[-1] in settings.stop_token_ids


@cache
def plain_text(settings: SequenceSettings) -> tuple[int, ...]:
    """What the target says alone, a token at a time."""
    text = PROMPT
    while not is_ended(text, settings):
        text = (*text, choose_token(row_behind(text), settings, len(text), text))
    return text


def speculated_text(
    settings: SequenceSettings, drafts: Iterator[Sequence[int]], rule: Rule | None = None
) -> tuple[int, ...]:
    """What comes of rounds with these drafts, one item for each round."""
    text = PROMPT
    while not is_ended(text, settings):
        draft_token_ids = next(drafts)
        rows = rows_behind(text, draft_token_ids)
        acceptance = (rule or accept_tokens)(rows, draft_token_ids, settings, array("I", text))
        text = (*text, *acceptance.token_ids)
    return text


def accept_tokens(
    rows: Logits, drafts: Sequence[int], settings: SequenceSettings, context: "array[int]"
) -> Acceptance:
    decided = accept_drafts(rows, Drafts(drafts), settings, context)
    return Acceptance(decided.num_accepted_tokens, list(decided.token_ids))


def accept(drafts: Sequence[int], settings: SequenceSettings = GREEDY) -> Acceptance:
    return accept_tokens(rows_behind(PROMPT, drafts), drafts, settings, array("I", PROMPT))


def continuation(length: int, settings: SequenceSettings = GREEDY) -> list[int]:
    return list(plain_text(settings)[len(PROMPT) :][:length])


@pytest.mark.parametrize("settings", [GREEDY, SEEDED])
def test_perfect_drafts_are_all_accepted_and_a_bonus_token_follows(
    settings: SequenceSettings,
) -> None:
    acceptance = accept(continuation(4, settings), settings)
    assert acceptance.num_accepted_tokens == 4
    assert acceptance.token_ids == continuation(5, settings)


@pytest.mark.parametrize("settings", [GREEDY, SEEDED])
@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_the_first_wrong_draft_is_replaced_and_ends_the_round(
    settings: SequenceSettings, num_right: int
) -> None:
    drafts = continuation(4, settings)
    drafts[num_right] = (drafts[num_right] + 1) % VOCAB_SIZE
    acceptance = accept(drafts, settings)
    assert acceptance.num_accepted_tokens == num_right
    assert acceptance.token_ids == continuation(num_right + 1, settings)


@pytest.mark.parametrize("settings", [GREEDY, SEEDED])
def test_without_drafts_the_target_says_its_next_token(settings: SequenceSettings) -> None:
    acceptance = accept([], settings)
    assert acceptance == Acceptance(0, continuation(1, settings))


@pytest.mark.parametrize("nonsense", [VOCAB_SIZE, 2**32 - 1])
def test_ids_beyond_the_vocabulary_are_never_accepted(nonsense: int) -> None:
    assert accept([nonsense, nonsense]) == Acceptance(0, continuation(1))
    first = continuation(1)
    assert accept([*first, nonsense]) == Acceptance(1, continuation(2))


def test_nothing_is_committed_behind_an_accepted_stop_token() -> None:
    drafts = continuation(4)
    settings = replace(GREEDY, stop_token_ids=(drafts[1],))
    num_committed = drafts.index(drafts[1]) + 1
    assert accept(drafts, settings) == Acceptance(num_committed, drafts[:num_committed])


def test_a_recovered_stop_token_ends_the_round_too() -> None:
    stop, *_ = continuation(1)
    settings = replace(GREEDY, stop_token_ids=(stop,))
    assert accept([(stop + 1) % VOCAB_SIZE, stop], settings) == Acceptance(0, [stop])


def test_a_stop_token_is_not_chosen_below_the_minimum_length() -> None:
    stop, *_ = continuation(1)
    settings = replace(GREEDY, stop_token_ids=(stop,), min_length=len(PROMPT) + 3)
    acceptance = accept([stop, stop], settings)
    assert acceptance.num_accepted_tokens == 0
    assert stop not in plain_text(settings)[len(PROMPT) : len(PROMPT) + 3]


@pytest.mark.parametrize("room", [1, 2, 3, 4, 5])
def test_the_length_limit_holds_inside_accepted_drafts(room: int) -> None:
    settings = replace(GREEDY, max_length=len(PROMPT) + room)
    acceptance = accept(continuation(4), settings)
    assert acceptance.num_accepted_tokens == min(room, 4)
    assert acceptance.token_ids == continuation(room)


def test_rows_behind_a_rejection_are_not_looked_at() -> None:
    first, second = continuation(2)
    drafts = [first, (second + 1) % VOCAB_SIZE, 0, 0]
    rows = rows_behind(PROMPT, drafts)
    rows[2:] = np.nan  # choose_token refuses such a row
    assert accept_tokens(rows, drafts, GREEDY, array("I", PROMPT)) == Acceptance(1, [first, second])


SETTINGS = st.builds(
    SequenceSettings,
    max_length=st.integers(3, 24),
    temperature=st.sampled_from([0.0, 1e-6, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 3),
    choice=st.integers(0, 1),
    logit_bias=st.sampled_from([(), ((3, 2.0),), ((0, -100.0), (4, 1.0))]),
    stop_token_ids=st.sampled_from([(), (STOP,), (2, STOP)]),
    min_length=st.sampled_from([0, 8]),
    prompt_length=st.just(len(PROMPT)),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.8, 1.7]),
)
TOKEN_IDS = st.integers(0, VOCAB_SIZE + 1)


@given(SETTINGS, st.lists(st.lists(TOKEN_IDS, max_size=5), max_size=12))
@settings(deadline=None, max_examples=60)
def test_arbitrary_drafts_never_change_the_text(
    sequence_settings: SequenceSettings, drafts: list[list[int]]
) -> None:
    text = speculated_text(sequence_settings, chain(drafts, repeat(())))
    assert text == plain_text(sequence_settings)


@given(SETTINGS, st.lists(st.tuples(st.integers(0, 6), TOKEN_IDS), max_size=12))
@settings(deadline=None, max_examples=60)
def test_mostly_right_drafts_never_change_the_text(
    sequence_settings: SequenceSettings, plan: list[tuple[int, int]]
) -> None:
    expected = plain_text(sequence_settings)
    text = PROMPT
    rounds = chain(plan, repeat((0, 0)))
    while not is_ended(text, sequence_settings):
        num_right, wrong = next(rounds)
        right = expected[len(text) :][:num_right]
        drafts = (*right, wrong, *expected[len(text) + len(right) + 1 :][:2])
        rows = rows_behind(text, drafts)
        acceptance = accept_tokens(rows, drafts, sequence_settings, array("I", text))
        assert acceptance.num_accepted_tokens >= len(right)
        accepted = acceptance.token_ids[: acceptance.num_accepted_tokens]
        assert tuple(accepted) == drafts[: acceptance.num_accepted_tokens]
        assert len(acceptance.token_ids) - acceptance.num_accepted_tokens in (0, 1)
        text = (*text, *acceptance.token_ids)
    assert text == expected


@dataclass(frozen=True, slots=True)
class Mutant:
    """An acceptance rule with one fault."""

    position_offset: int = 0
    num_unverified: int = 0
    row_offset: int = 0
    ends_sequences: bool = True
    keeps_going: bool = False
    is_greedy: bool = False
    counts_drafts: bool = True
    counts_next_draft: bool = False
    is_keyed_by_draft: bool = False
    forgets_choice: bool = False

    def __call__(
        self,
        logits: Logits,
        draft_token_ids: Sequence[int],
        settings: SequenceSettings,
        context: "array[int]",
    ) -> Acceptance:
        start = len(context)
        if self.is_greedy:
            settings = replace(settings, temperature=0.0)
        token_ids: list[int] = []

        def choose(row: Logits, index: int) -> int:
            num_counted = index + self.counts_next_draft if self.counts_drafts else 0
            counted = [*context, *draft_token_ids[:num_counted]]
            key = settings
            if self.is_keyed_by_draft:
                key = replace(key, seed=key.seed + [*draft_token_ids, 0][index])
            if self.forgets_choice:
                key = replace(key, choice=0)
            return choose_token(row, key, start + index + self.position_offset, counted)

        for index, draft_token_id in enumerate(draft_token_ids):
            token_id = choose(logits[max(index - self.row_offset, 0)], index)
            if index < self.num_unverified:
                token_id = draft_token_id
            token_ids.append(token_id)
            if token_id != draft_token_id and not self.keeps_going:
                return Acceptance(index, token_ids)
            is_last = (
                token_id in settings.stop_token_ids or start + index + 1 == settings.max_length
            )
            if is_last and self.ends_sequences:
                return Acceptance(index + 1, token_ids)
        bonus_token_id = choose(logits[-1], len(token_ids))
        return Acceptance(len(token_ids), [*token_ids, bonus_token_id])


def is_caught(rule: Rule) -> bool:
    rng = np.random.default_rng(5)
    for seed in range(20):
        sequence_settings = replace(PENALIZED, seed=seed, choice=1, stop_token_ids=(STOP,))
        drafts = (rng.integers(VOCAB_SIZE, size=3).tolist() for _ in repeat(None))
        if speculated_text(sequence_settings, drafts, rule) != plain_text(sequence_settings):
            return True
    return False


@pytest.mark.parametrize(
    "mutant",
    [
        Mutant(position_offset=1),
        Mutant(num_unverified=1),
        Mutant(row_offset=1),
        Mutant(ends_sequences=False),
        Mutant(keeps_going=True),
        Mutant(is_greedy=True),
        Mutant(counts_drafts=False),
        Mutant(counts_next_draft=True),
        Mutant(is_keyed_by_draft=True),
        Mutant(forgets_choice=True),
    ],
    ids=str,
)
def test_comparing_texts_catches_a_faulty_rule(mutant: Mutant) -> None:
    assert is_caught(mutant)


def test_comparing_texts_finds_no_fault_in_the_rule_and_in_the_faultless_mutant() -> None:
    assert not is_caught(accept_tokens)
    assert not is_caught(Mutant())
