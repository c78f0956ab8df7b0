"""Stops, tokens and text of one answer, whatever the rounds were."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_tokenizers import smollm2_tokenizer, table_tokenizer

from coordinator.text_stream import TextStream
from coordinator.tokenizer import Tokenizer

HA = 421  # " ha"
ONE = 33  # "1"
HALF_SMILE = 10813  # the first two of the four bytes of "🙂"
EOS = 2


class Answer:
    """An answer as a client puts it together."""

    def __init__(
        self, stream: TextStream, token_ids: list[int], sizes: list[int] | None = None
    ) -> None:
        self.token_ids: list[int] = []
        self.deltas: list[str] = []
        self.stopped = False
        position = 0
        for size in sizes or [1] * len(token_ids):
            step = stream.feed(token_ids[position : position + size])
            position += size
            self.token_ids += step.token_ids
            self.deltas.append(step.text)
            self.stopped = step.stopped
            if step.stopped:
                break
        self.deltas.append(stream.finish())
        self.text = "".join(self.deltas)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[int], list[int], list[str], list[int], int]:
    """Byte tokens of few kinds, a cut into rounds, stops, stop tokens, min_tokens."""
    alphabet = [*b"ab", *"é🙂".encode(), 257]
    token_ids = draw(st.lists(st.sampled_from(alphabet), min_size=1, max_size=24))
    cuts = sorted(draw(st.sets(st.integers(1, len(token_ids)), max_size=6)) | {len(token_ids)})
    sizes = [end - start for start, end in zip([0, *cuts], cuts, strict=False)]
    stop = draw(st.lists(st.text("abé🙂\ufffd", min_size=1, max_size=3), max_size=3))
    stop_token_ids = draw(st.lists(st.sampled_from([ord("b"), 257]), max_size=2))
    return token_ids, sizes, stop, stop_token_ids, draw(st.integers(0, 6))


@given(answers())
def test_rounds_cut_anywhere_give_the_same_answer(
    case: tuple[list[int], list[int], list[str], list[int], int],
) -> None:
    token_ids, sizes, stop, stop_token_ids, min_tokens = case

    def answer(sizes: list[int] | None) -> Answer:
        stream = TextStream(table_tokenizer(), stop, stop_token_ids, min_tokens)
        return Answer(stream, token_ids, sizes)

    one_by_one, cut, whole = answer(None), answer(sizes), answer([len(token_ids)])
    assert one_by_one.text == cut.text == whole.text
    assert one_by_one.token_ids == cut.token_ids == whole.token_ids
    assert one_by_one.stopped == cut.stopped == whole.stopped


def read_again_after_every_token(
    token_ids: list[int], stop: list[str], stop_token_ids: list[int], min_tokens: int
) -> tuple[list[int], str, bool]:
    """Tokens, text and end of an answer, the slow way."""
    text = ""
    for count in range(1, len(token_ids) + 1):
        if token_ids[count - 1] in stop_token_ids:
            return token_ids[:count], table_tokenizer().decode(token_ids[: count - 1]), True
        known, text = len(text), whole_characters(token_ids[:count])
        if count > min_tokens and (cut := before_stop(text, known, stop)) is not None:
            return token_ids[:count], cut, True
    known, text = len(text), table_tokenizer().decode(token_ids)
    cut = before_stop(text, known, stop) if len(token_ids) > min_tokens else None
    return token_ids, text if cut is None else cut, False


def whole_characters(token_ids: list[int]) -> str:
    joined = b"".join(map(table_tokenizer().token_bytes, token_ids))
    return codecs.utf_8_decode(joined, "replace", False)[0]


def before_stop(text: str, known: int, stop: list[str]) -> str | None:
    """The text before the stop string that is completed first behind `known` characters."""
    for end in range(known + 1, len(text) + 1):
        if completed := [len(s) for s in stop if text[:end].endswith(s)]:
            return text[: end - max(completed)]
    return None


@given(answers())
def test_the_answer_is_what_reading_it_again_after_every_token_gives(
    case: tuple[list[int], list[int], list[str], list[int], int],
) -> None:
    token_ids, sizes, stop, stop_token_ids, min_tokens = case
    stream = TextStream(table_tokenizer(), stop, stop_token_ids, min_tokens)
    answer = Answer(stream, token_ids, sizes)
    expected = read_again_after_every_token(token_ids, stop, stop_token_ids, min_tokens)
    assert (answer.token_ids, answer.text, answer.stopped) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_a_stop_early_in_a_long_block_is_found(size: int) -> None:
    for stop in ([" ha"], ["h"]):
        answer = Answer(TextStream(smollm2_tokenizer(), stop), [HA] * 16, [size] * (16 // size))
        assert answer.token_ids == [HA]
        assert answer.text == ("" if stop == [" ha"] else " ")
        assert answer.stopped


def test_tokens_behind_a_stop_that_ends_inside_a_block_are_dropped() -> None:
    answer = Answer(TextStream(smollm2_tokenizer(), ["111"]), [ONE] * 5, [5])
    assert (answer.text, answer.token_ids, answer.stopped) == ("", [ONE] * 3, True)


def test_no_part_of_a_stop_is_shown_before_it_is_complete() -> None:
    answer = Answer(TextStream(smollm2_tokenizer(), ["11111"]), [ONE] * 9)
    assert answer.deltas == [""] * 6
    assert len(answer.token_ids) == 5


def test_what_is_held_back_comes_out_when_the_answer_ends_otherwise() -> None:
    answer = Answer(TextStream(smollm2_tokenizer(), ["11112"]), [ONE] * 6)
    assert (answer.text, answer.stopped) == ("111111", False)
    one_held = Answer(TextStream(smollm2_tokenizer(), ["10"]), [ONE] * 9)
    assert one_held.deltas == ["", *["1"] * 9]


def test_a_stop_spans_the_tokens_of_one_character() -> None:
    ids = list(smollm2_tokenizer().encode("so🙂 it"))
    answer = Answer(TextStream(smollm2_tokenizer(), ["🙂"]), ids)
    assert (answer.text, answer.token_ids) == ("so", ids[:3])


def test_half_characters_come_out_at_the_end_and_nowhere_else() -> None:
    for sizes in ([1, 1, 1], [3]):
        answer = Answer(TextStream(smollm2_tokenizer()), [HALF_SMILE] * 3, sizes)
        assert answer.text == "\ufffd" * 3
    ended = Answer(TextStream(smollm2_tokenizer(), (), [EOS]), [HALF_SMILE, EOS])
    assert (ended.text, ended.token_ids) == ("\ufffd", [HALF_SMILE, EOS])


def test_a_stop_token_counts_but_is_not_shown_even_if_it_is_a_word() -> None:
    for stop_token in (EOS, ONE):
        stream = TextStream(smollm2_tokenizer(), (), [stop_token])
        answer = Answer(stream, [HA, stop_token, HA], [3])
        assert (answer.text, answer.token_ids) == (" ha", [HA, stop_token])


def test_a_stop_token_lets_go_of_a_stop_string_that_was_only_begun() -> None:
    answer = Answer(TextStream(smollm2_tokenizer(), ["12"], [EOS]), [HA, ONE, EOS], [3])
    assert answer.text == " ha1"


def test_no_text_stops_the_first_min_tokens_and_a_stop_token_that_was_chosen_does() -> None:
    tokenizer: Tokenizer = smollm2_tokenizer()
    answer = Answer(TextStream(tokenizer, ["11"], (), 4), [ONE] * 9, [9])
    assert (answer.text, answer.token_ids) == ("111", [ONE] * 5)
    answer = Answer(TextStream(tokenizer, (), [EOS], 2), [EOS, EOS, EOS, ONE], [4])
    assert answer.token_ids == [EOS]


def test_a_stop_in_the_last_half_character_cuts_the_text_unless_nothing_may_stop_there() -> None:
    for min_tokens, text in ((0, ""), (1, "\ufffd")):
        stream = TextStream(smollm2_tokenizer(), ["\ufffd"], (), min_tokens)
        assert Answer(stream, [HALF_SMILE]).text == text
