"""A sequence followed in another tokenizer's tokens."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from other_tokenizers import SENTENCES, byte_level_files, sentencepiece_files

from draft_service.translation.respelling import CHUNK_BYTES, Respelling, continuation
from draft_service.translation.shared_tokens import SharedTokens, agreement
from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.table_tokenizer import table_tokenizer_files

TABLE = Vocabulary("the target", table_tokenizer_files())
BYTE_LEVEL = Vocabulary("byte-level", byte_level_files())
LARGER = Vocabulary("larger", byte_level_files(420, eos="<end>"))
SENTENCEPIECE = Vocabulary("sentencepiece", sentencepiece_files())
TEXT = " ".join(SENTENCES * 3)
drafts = pytest.mark.parametrize("draft", [BYTE_LEVEL, SENTENCEPIECE, TABLE])


@drafts
@given(st.data())
@settings(max_examples=25)
def test_it_does_not_matter_in_which_steps_a_sequence_is_followed(
    draft: Vocabulary, data: st.DataObject
) -> None:
    text = f"{TEXT} {'ab🙂' * 200} {'c' * 700} {TEXT}"
    token_ids = array("I", LARGER.encode(text.encode()))
    respelling = Respelling(LARGER, draft)
    end = 0
    while end < len(token_ids):
        end += data.draw(st.integers(1, 200))
        stepwise = respelling.follow(token_ids[:end])
        assert draft.written(stepwise) == LARGER.written(token_ids[:end])
    assert stepwise == Respelling(LARGER, draft).follow(token_ids)


def test_a_text_is_split_as_its_own_tokenizer_splits_it_whole() -> None:
    assert len(TEXT) > 5 * CHUNK_BYTES
    spelled = Respelling(TABLE, BYTE_LEVEL).follow(array("I", [*TEXT.encode()]))
    assert spelled == BYTE_LEVEL.encode(TEXT.encode())


@drafts
def test_text_without_words_is_cut_and_nothing_of_it_is_lost(draft: Vocabulary) -> None:
    text = ("日本" * 400).encode() + b"\xf0\x9f"
    spelled = Respelling(TABLE, draft).follow(array("I", [*text]))
    assert draft.written(spelled) == text


def test_tokens_that_were_taken_back_leave_no_trace() -> None:
    respelling = Respelling(TABLE, BYTE_LEVEL)
    respelling.follow(array("I", [*TEXT.encode()]))
    other = array("I", [*b"the sea", *TEXT.encode()[7:200]])
    assert respelling.follow(other) == Respelling(TABLE, BYTE_LEVEL).follow(other)


def test_special_tokens_are_those_of_the_same_role_or_name_or_else_written_out() -> None:
    bos, end, user = (TABLE.roles["bos_token"], TABLE.roles["eos_token"], 259)
    spelled = Respelling(TABLE, LARGER).follow(array("I", [bos, user, *b"the", end]))
    assert spelled == [
        LARGER.roles["bos_token"],
        *LARGER.encode(b"<|user|>the"),
        LARGER.roles["eos_token"],
    ]
    assert Respelling(LARGER, BYTE_LEVEL).follow(array("I", [0, 1])) == [0, 1]


def test_what_the_model_expects_before_any_text_is_there_once() -> None:
    bos = TABLE.roles["bos_token"]
    assert Respelling(BYTE_LEVEL, TABLE).follow(array("I", BYTE_LEVEL.encode(b"the"))) == [
        bos,
        *b"the",
    ]
    assert Respelling(BYTE_LEVEL, TABLE).follow(array("I", [0]))[:2] == [bos]


def test_a_token_that_nobody_knows_is_passed_over() -> None:
    assert Respelling(TABLE, BYTE_LEVEL).follow(array("I", [116, 2**32 - 1])) == (
        BYTE_LEVEL.encode(b"t")
    )


@pytest.mark.parametrize("vocabulary", [BYTE_LEVEL, SENTENCEPIECE])
def test_a_continuation_is_split_as_with_what_is_before_it(vocabulary: Vocabulary) -> None:
    whole = vocabulary.encode(b"the rain in the plain")
    for number in range(1, len(whole)):
        before, rest = vocabulary.written(whole[:number]), vocabulary.written(whole[number:])
        assert continuation(vocabulary, before, rest) == whole[number:]
    # Inside of a token there is no such boundary.
    assert vocabulary.written(continuation(vocabulary, b"the ra", b"in the")) == b"in the"


def test_agreement_is_the_share_of_a_text_that_both_split_alike() -> None:
    assert agreement(LARGER, LARGER) == 1.0
    assert agreement(TABLE, LARGER) < 0.9
    assert agreement(LARGER, TABLE) < 0.9


def test_tokens_in_common_are_paired_by_what_they_write() -> None:
    shared = SharedTokens(TABLE, LARGER, len(LARGER))
    assert shared.draft_id[ord("t")] == LARGER.ids[b"t"]
    assert shared.draft_id[TABLE.roles["eos_token"]] == LARGER.roles["eos_token"]
    assert len(shared) == 256 + 2
    assert len(SharedTokens(TABLE, LARGER, 100)) < 101
