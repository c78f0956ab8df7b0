"""A tokenizer as bytes: what goes on behind a text is split so that nothing is added or lost."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from other_tokenizers import byte_level_files, lowercasing, sentencepiece_files

from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.engine.tokenizer_files import TOKENIZER_FILE, TokenizerFile
from paceline.errors import InvalidConfig

KINDS = {
    "byte-level": Vocabulary("byte-level", byte_level_files()),
    "sentencepiece": Vocabulary("sentencepiece", sentencepiece_files()),
    "table": Vocabulary("table", table_tokenizer_files()),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@given(text=st.binary(max_size=30) | st.text(" the rain\nsplé🙂", max_size=40).map(str.encode))
def test_tokens_write_the_bytes_that_they_were_split_from(kind: str, text: bytes) -> None:
    vocabulary = KINDS[kind]
    assert vocabulary.written(vocabulary.encode(text)) == text


@kinds
@pytest.mark.parametrize("text", ["rain", " rain", "\nrain", "  rain", "ain the"])
def test_a_text_that_goes_on_begins_with_no_blank_of_the_tokenizers(kind: str, text: str) -> None:
    vocabulary = KINDS[kind]
    whole = vocabulary.encode(text.encode())
    assert vocabulary.written(whole) == text.encode()
    assert len(whole) < len(text) or kind == "table", "words are tokens"


def test_of_tokens_that_write_the_same_the_one_for_single_bytes_comes_last() -> None:
    vocabulary = KINDS["sentencepiece"]
    letter = vocabulary.encode(b"a b")[-1:]
    assert vocabulary.token_bytes[vocabulary.ids[b"t"]] == b"t"
    assert vocabulary.ids[b"t"] > 258, "not <0x74>"
    assert letter


def test_beginning_and_end_of_texts_are_known_by_their_roles() -> None:
    assert KINDS["byte-level"].roles == {"bos_token": 0, "eos_token": 1}
    assert KINDS["table"].prefix == [KINDS["table"].roles["bos_token"]]
    assert KINDS["byte-level"].prefix == []


def spelling_unknown(files: list[TokenizerFile]) -> list[TokenizerFile]:
    document = json.loads(files[0].content)
    document["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    return [TokenizerFile(TOKENIZER_FILE, json.dumps(document).encode()), *files[1:]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lowercasing, "the tokenizer of the draft changes the text that it reads"),
        (spelling_unknown, "decoder of tokenizer.json is"),
    ],
)
def test_a_tokenizer_whose_tokens_do_not_write_texts_is_refused(
    change: Callable[[list[TokenizerFile]], list[TokenizerFile]], expected: str
) -> None:
    with pytest.raises(InvalidConfig, match=expected):
        Vocabulary("the draft", change(byte_level_files()))
