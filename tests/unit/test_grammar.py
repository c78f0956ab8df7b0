"""Which tokens a grammar allows, against languages that are small enough to be written out."""

import gc
import json
import weakref
from array import array
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import SOON_S

from paceline.engine.grammar import MAX_COMPILED, Grammars
from paceline.engine.table_model import EOS_ID, VOCAB_SIZE
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.errors import InvalidRequest
from paceline.rounds import SequenceSettings

TOKENS = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"", b"ba", "é".encode()[:1], "é".encode()[1:]]
STOP = 6
"""A token that is no text."""
LANGUAGES = {
    'start: "ab" | "abc" | "bab"': ["ab", "abc", "bab"],
    'start: ("a" | "b")? "c"': ["c", "ac", "bc"],
    'start: "é" ("a" | "é")?': ["é", "éa", "éé"],
    'start: %json {"enum": ["a", "bc"], "x-guidance": {"whitespace_flexible": false}}': [],
}
PROMPT = [0, 6, 3]


def settings(grammar: str, **changes: object) -> SequenceSettings:
    known = SequenceSettings(
        max_length=50, grammar=grammar, prompt_length=len(PROMPT), stop_token_ids=(STOP,)
    )
    return replace(known, **changes)


def grammars(tokens: Sequence[bytes] = TOKENS) -> Grammars:
    return Grammars(tokens, len(tokens))


SHARED = grammars()


def allowed(wanted: SequenceSettings, behind_prompt: Sequence[int] = ()) -> list[int]:
    state = SHARED.state(wanted)
    assert state is not None
    return np.flatnonzero(state.allowed(array("I", [*PROMPT, *behind_prompt]))).tolist()


def by_the_book(words: Collection[bytes], text: bytes) -> list[int]:
    """Tokens that leave the beginning of a word; the stop token behind a whole one."""
    found = [
        id
        for id, token in enumerate(TOKENS)
        if token and any(word.startswith(text + token) for word in words)
    ]
    return sorted([*found, STOP] if text in words else found)


PATHS = st.lists(st.integers(0, 9), max_size=6)


@given(st.sampled_from([g for g, words in LANGUAGES.items() if words]), st.lists(PATHS, max_size=6))
def test_allowed_are_the_tokens_that_go_on_with_a_word_whatever_was_asked_before(
    grammar: str, paths: list[list[int]]
) -> None:
    words = [word.encode() for word in LANGUAGES[grammar]]
    state = SHARED.state(settings(grammar))
    assert state is not None
    for path in paths:
        text = b""
        on_path = [t for t in path if t != STOP]
        num_good = 0
        for token in on_path:
            text += TOKENS[token]
            if not any(word.startswith(text) for word in words):
                break
            num_good += 1
        context = array("I", [*PROMPT, *on_path])
        assert state.reach(context) == len(PROMPT) + num_good
        if num_good < len(on_path):
            with pytest.raises(InvalidRequest, match="does not go on with the grammar"):
                state.allowed(context)
        good = array("I", [*PROMPT, *on_path[:num_good]])
        text = b"".join(TOKENS[token] for token in on_path[:num_good])
        assert np.flatnonzero(state.allowed(good)).tolist() == by_the_book(words, text)


AB = 'start: "ab" "c"?'


@pytest.mark.parametrize("foreign", [len(TOKENS), len(TOKENS) + 1, 2**32 - 1])
def test_drafts_that_are_no_tokens_lie_on_no_path_and_break_nothing(foreign: int) -> None:
    state = SHARED.state(settings(AB))
    assert state is not None
    assert state.reach(array("I", [*PROMPT, 0, foreign, 1])) == len(PROMPT) + 1
    assert np.flatnonzero(state.allowed(array("I", [*PROMPT, 0]))).tolist() == [1, 4]
    assert np.flatnonzero(state.allowed(array("I", [*PROMPT, 3]))).tolist() == [2, STOP]


def test_the_end_is_allowed_where_the_grammar_may_end_and_nowhere_else() -> None:
    assert allowed(settings(AB)) == [0, 3, 5]
    assert allowed(settings(AB), [3]) == [2, STOP]
    assert allowed(settings(AB), [5]) == [STOP]


def test_below_min_length_the_end_is_banned_unless_nothing_else_is_left() -> None:
    wanted = settings(AB, min_length=len(PROMPT) + 20)
    assert allowed(wanted, [3]) == [2]
    assert allowed(wanted, [5]) == [STOP]


def test_a_stop_token_that_is_text_may_stand_where_it_goes_on_and_where_the_grammar_ends() -> None:
    wanted = settings('start: "ab" "a"?', stop_token_ids=(STOP, 1))
    assert allowed(wanted, [0]) == [1, 7]
    assert allowed(wanted, [3]) == [0, 1, STOP]
    assert allowed(replace(wanted, min_length=10), [0]) == [7]
    assert allowed(replace(wanted, min_length=10), [3]) == [0]
    assert allowed(replace(wanted, min_length=10), [3, 0]) == [1, STOP]


def test_without_a_stop_token_nothing_follows_a_complete_text() -> None:
    assert allowed(settings(AB, stop_token_ids=()), [5]) == []


def test_tokens_that_a_model_has_beyond_its_tokenizer_are_banned() -> None:
    state = Grammars(TOKENS[:4], 8).state(settings(AB, stop_token_ids=(7, 99)))
    assert state is not None
    assert np.flatnonzero(state.allowed(array("I", PROMPT))).tolist() == [0, 3]
    assert np.flatnonzero(state.allowed(array("I", [*PROMPT, 3]))).tolist() == [2, 7]


def test_a_model_may_lack_tokens_of_its_tokenizer() -> None:
    state = Grammars(TOKENS, 2).state(settings(AB))
    assert state is not None
    assert state.allowed(array("I", PROMPT)).tolist() == [True, False]


@pytest.mark.parametrize(
    ("grammar", "cause"),
    [
        ("start: nothing", "nothing"),
        ('start: %json {"type": "nonsense"}', "Invalid type: nonsense"),
        ('start: %json {"$ref": "#"}', "NoExtension"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_and_the_others_go_on(
    grammar: str, cause: str
) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=f"grammar: .*{cause}"):
            SHARED.state(settings(grammar))
    assert allowed(settings(AB)) == [0, 3, 5]


def test_a_sequence_keeps_its_state_until_its_settings_come_again() -> None:
    wanted = settings(AB)
    state = SHARED.state(wanted)
    assert SHARED.state(wanted, state) is state
    assert SHARED.state(replace(wanted), state) is not state
    assert SHARED.state(settings(""), state) is None


def test_sequences_with_one_grammar_do_not_share_a_state() -> None:
    first, second = SHARED.state(settings(AB)), SHARED.state(settings(AB))
    assert first is not None and second is not None
    first.allowed(array("I", [*PROMPT, 5]))
    assert np.flatnonzero(second.allowed(array("I", PROMPT))).tolist() == [0, 3, 5]


def test_grammars_are_compiled_aside_and_the_oldest_forgotten() -> None:
    few = grammars()
    texts = [f'start: "{"a" * (n + 1)}"' for n in range(MAX_COMPILED + 3)]
    for text in texts:
        few.begin(text)
    few.begin("")
    assert few.wait(texts[:1], timeout_s=SOON_S)
    assert not few.wait([], timeout_s=SOON_S) and not few.wait([""], timeout_s=SOON_S)
    assert few.is_ready("")
    state = few.state(settings(texts[0]))
    assert state is not None
    assert np.flatnonzero(state.allowed(array("I", PROMPT))).tolist() == [0]


def test_a_grammar_that_becomes_too_complex_behind_a_token_says_so() -> None:
    """Not that its own token does not go on with it."""
    table = Grammars.of_tokenizer(table_tokenizer_files(), VOCAB_SIZE)
    schema = {"properties": {f"p{index}": {} for index in range(2000)}, "type": "object"}
    wanted = settings(f"start: %json {json.dumps(schema)}", prompt_length=0)
    state = table.state(wanted)
    assert state is not None
    assert np.flatnonzero(state.allowed(array("I"))).tolist() == [ord("{")]
    with pytest.raises(InvalidRequest, match="grammar: cannot be followed at position 0: Parser"):
        state.allowed(array("I", [ord("{")]))


def test_whatever_fails_while_compiling_is_a_refusal_of_that_grammar() -> None:
    broken = grammars()
    broken._vocabulary.tokens = ["no bytes"]  # type: ignore[list-item]
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="grammar: cannot be used: "):
            broken.state(settings(AB))


def test_a_path_that_is_too_complex_leaves_the_others_alone() -> None:
    """A draft may go where the text never will."""
    table = Grammars.of_tokenizer(table_tokenizer_files(), VOCAB_SIZE)
    many = {"properties": {f"p{index}": {} for index in range(2000)}, "type": "object"}
    schema = {"type": "object", "properties": {"a": many, "b": {"type": "null"}}}
    wanted = settings(f"start: %json {json.dumps(schema)}", prompt_length=0)
    state, fresh = table.state(wanted), table.state(wanted)
    assert state is not None and fresh is not None
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="cannot be followed"):
            state.allowed(array("I", [*b'{"a":{']))
        for text in (b'{"', b'{"b":n'):
            allowed_here = state.allowed(array("I", [*text]))
            assert allowed_here.tolist() == fresh.allowed(array("I", [*text])).tolist()


def test_json_in_the_bytes_of_the_table_models_tokenizer() -> None:
    bytewise = Grammars.of_tokenizer(table_tokenizer_files(), VOCAB_SIZE)
    wanted = settings('start: %json {"type": "object"}', stop_token_ids=(EOS_ID,))
    state = bytewise.state(wanted)
    assert state is not None
    for text, follows in (("", "{"), ('{"a"', ":"), ('{"a":tru', "e")):
        mask = state.allowed(array("I", [*PROMPT, *text.encode()]))
        assert mask[ord(follows)] and not mask[EOS_ID]
    whole = state.allowed(array("I", [*PROMPT, *b'{"a":[1]}']))
    assert np.flatnonzero(whole).tolist() == [EOS_ID]


class Held:
    """What somebody has in hand who asks for a state."""


def test_a_grammar_that_cannot_be_used_keeps_nothing_of_those_who_asked_for_it() -> None:
    wanted = settings('start: "a')

    def ask(held: Held) -> str:
        try:
            SHARED.state(wanted)
        except InvalidRequest as error:
            return error.message
        return ""

    all_held = [Held() for _ in range(3)]
    told = {ask(held) for held in all_held}
    assert len(told) == 1 and "grammar: cannot be used" in told.pop()
    alive = [weakref.ref(held) for held in all_held]
    all_held.clear()
    gc.collect()
    assert [held() for held in alive] == [None] * 3
