"""No tree of drafts ever changes the text, and what does is caught."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from plain_text import plain_text
from sequence_owner import GREEDY, LAW, PROMPT, SEEDED, VOCAB_SIZE, Owner, new_verifier
from trees import merged, trees

from paceline.engine.grammar import GrammarState
from paceline.engine.kv_cache import KVCache
from paceline.engine.model import Logits
from paceline.rounds import Drafts, SequenceSettings
from target_service import acceptance, verifier
from target_service.acceptance import Acceptance

TREES = trees(st.integers(0, VOCAB_SIZE - 1), 12)
SETTINGS = st.builds(
    SequenceSettings,
    max_length=st.integers(len(PROMPT) + 1, len(PROMPT) + 16),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([0, 3]),
    seed=st.integers(0, 3),
    choice=st.integers(0, 1),
    logit_bias=st.sampled_from([(), ((0, -100.0), (4, 1.0))]),
    stop_token_ids=st.sampled_from([(), (LAW.eos_token_id,), (2, 5)]),
    min_length=st.sampled_from([0, len(PROMPT) + 4]),
    prompt_length=st.just(len(PROMPT)),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.7]),
)


def said_with(plan: Sequence[tuple[int, Drafts]], settings: SequenceSettings) -> list[int]:
    """What comes of rounds with a right path of so many tokens and a tree beside it, over and over;
    up to where it goes wrong."""
    owner = Owner(new_verifier(max_speculative_tokens=9), settings=settings)
    expected = plain_text(LAW, PROMPT, settings)
    start = 0
    for num_right, drafts in cycle(plan):
        num_said = len(owner.said)
        if num_said >= len(expected) or owner.said != expected[:num_said]:
            break
        right = Drafts(tuple(expected[num_said:][:num_right]))
        owner.ask(merged(drafts, right) if num_right % 2 else merged(right, drafts), start)
        start = len(owner.log)
    return owner.said


@given(SETTINGS, st.lists(st.tuples(st.integers(0, 5), TREES), min_size=1, max_size=12))
@examples(max_examples=150, deadline=None)
def test_no_tree_ever_changes_the_text(
    settings: SequenceSettings, plan: list[tuple[int, Drafts]]
) -> None:
    assert said_with(plan, settings) == plain_text(LAW, PROMPT, settings)


# What is wrong in one place must show in the text.

FORKS = [
    (2, Drafts((1, 2, 3, 4), (-1, -1, 0, 1))),
    (1, Drafts((5, 6, 7, 8), (-1, -1, -1, 0))),
    (4, Drafts((9, 10, 3), (-1, 0, -1))),
]


def is_right() -> bool:
    penalized = replace(SEEDED, prompt_length=len(PROMPT), frequency_penalty=0.8)
    for settings in (GREEDY, penalized, replace(SEEDED, choice=1)):
        for seed in range(4):
            seeded = replace(settings, seed=seed)
            if said_with(FORKS, seeded) != plain_text(LAW, PROMPT, seeded):
                return False
    return True


COUPLED, KEEP_PATH = acceptance.coupled, KVCache.keep_path


def takes_what_stands_first(logits: Logits, drafts: Drafts, *rest: Any) -> Acceptance:
    """Takes the first draft for what the target would have said."""
    decided = COUPLED(logits, drafts, *rest)
    if not drafts.token_ids:
        return decided
    return Acceptance(1, [drafts.token_ids[0], *decided.token_ids[1:2]])


def mixes_the_rows_up(logits: Logits, *rest: Any) -> Acceptance:
    return COUPLED(np.concatenate([logits[:1], logits[:0:-1]]), *rest)


def counts_all_drafts(
    logits: Logits,
    drafts: Drafts,
    settings: SequenceSettings,
    context: "array[int]",
    grammar: GrammarState | None,
) -> Acceptance:
    """Penalties see the whole tree, not the path."""
    num_others = max(len(context) - len(drafts.token_ids), 0)
    others = array("I", [*context[:num_others], *drafts.token_ids])[: len(context)]
    return COUPLED(logits, drafts, settings, others, grammar)


def keeps_the_last_branch(cache: KVCache[Any], kv: Any, path: Sequence[int]) -> None:
    kv.num_tokens += len(path)
    kv.tree = None


def keeps_the_first_drafts(cache: KVCache[Any], kv: Any, path: Sequence[int]) -> None:
    KEEP_PATH(cache, kv, range(len(path)))


def keeps_them_a_place_too_early(cache: KVCache[Any], kv: Any, path: Sequence[int]) -> None:
    kv.num_tokens -= 1
    KEEP_PATH(cache, kv, path)
    kv.num_tokens += 1


def follows_the_last_drafts(drafts: Drafts, token_ids: Sequence[int]) -> list[int]:
    return list(range(len(drafts.token_ids)))[len(drafts.token_ids) - len(token_ids) :]


def test_the_forks_find_no_fault_in_what_is_right() -> None:
    assert is_right()


@pytest.mark.parametrize(
    ("place", "name", "mutant"),
    [
        (acceptance, "coupled", takes_what_stands_first),
        (acceptance, "coupled", mixes_the_rows_up),
        (acceptance, "coupled", counts_all_drafts),
        (KVCache, "keep_path", keeps_the_last_branch),
        (KVCache, "keep_path", keeps_the_first_drafts),
        (KVCache, "keep_path", keeps_them_a_place_too_early),
        (verifier, "path_along", follows_the_last_drafts),
    ],
)
def test_a_wrong_branch_or_a_wrong_row_is_caught(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, mutant: Callable[..., Any]
) -> None:
    monkeypatch.setattr(place, name, mutant)
    assert not is_right()
