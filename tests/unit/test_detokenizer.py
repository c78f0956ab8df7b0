"""Text out of tokens as they come."""

from functools import cache

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from real_tokenizers import smollm2_directory, smollm2_tokenizer, table_tokenizer

from coordinator.detokenizer import Detokenizer
from coordinator.tokenizer import Tokenizer

SPLIT_CHARACTERS = ["🙂🙂🙂", "é́é́", "🇩🇪🇫🇷", "👩‍🚀", "東京안녕", "naïve — “ﬁ”", "\x00\ufeff\ufffd"]

# Half characters in any order, special tokens between them, and anything else.
pieces_of_characters = st.sampled_from([10813, 38887, 235, 119, 321, 231, 244, 218, 151, 219])
smollm2_ids = st.lists(pieces_of_characters | st.integers(0, 49151), max_size=30)
table_ids = st.lists(st.integers(0, 260), max_size=30)


def streamed(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.feed(token_id) for token_id in token_ids] + [detokenizer.finish()]


@cache
def librarys_own() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(smollm2_directory() / "tokenizer.json"))


@given(smollm2_ids)
def test_any_ids_stream_to_what_the_librarys_own_decoder_gives(token_ids: list[int]) -> None:
    text = "".join(streamed(smollm2_tokenizer(), token_ids))
    assert text == smollm2_tokenizer().decode(token_ids)
    assert text == librarys_own().decode(token_ids, skip_special_tokens=True)


@given(table_ids)
def test_any_bytes_stream_to_what_reading_them_at_once_gives(token_ids: list[int]) -> None:
    text = "".join(streamed(table_tokenizer(), token_ids))
    assert text == bytes(i for i in token_ids if i < 256).decode(errors="replace")


@pytest.mark.parametrize("text", SPLIT_CHARACTERS)
def test_no_piece_holds_half_a_character(text: str) -> None:
    for tokenizer in (smollm2_tokenizer(), table_tokenizer()):
        pieces = streamed(tokenizer, list(tokenizer.encode(text)))
        assert "".join(pieces) == text
        assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


def test_a_character_that_stays_half_becomes_one_replacement_character() -> None:
    assert streamed(smollm2_tokenizer(), [10813]) == ["", "\ufffd"]
    assert "".join(streamed(smollm2_tokenizer(), [10813] * 3)) == "\ufffd" * 3


def test_a_special_token_does_not_come_between_the_halves_of_a_character() -> None:
    assert streamed(smollm2_tokenizer(), [10813, 2, 38887]) == ["", "", "🙂", ""]


def test_a_blank_is_held_in_no_buffer() -> None:
    ids = list(smollm2_tokenizer().encode(" a b"))
    assert streamed(smollm2_tokenizer(), ids) == [" a", " b", ""]
