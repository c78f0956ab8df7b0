"""The table model is its law exactly, however its passes are cut, and shows every KV mistake."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import Logits, PassSequence
from paceline.engine.table_model import BOS_ID, EOS_ID, VOCAB_SIZE, TableLaw, TableModel, TokenIds
from paceline.errors import InvalidConfig

PROMPT = [BOS_ID, *b"The rider in front"]

token_lists = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=80)


def opened(model: TableModel, token_ids: list[int], room: int = 0) -> KVSequence[TokenIds]:
    kv = model.kv_cache.open(token_ids, salt="")
    assert model.kv_cache.reserve(kv, max(room, len(token_ids)))
    return kv


def run(model: TableModel, kv: KVSequence[TokenIds], token_ids: list[int]) -> Logits:
    """All rows of one pass over `token_ids`."""
    return model.forward([PassSequence(kv, token_ids, len(token_ids))])[0]


@given(token_lists, st.lists(st.integers(1, 17), min_size=80, max_size=80), st.integers(0, 9))
def test_rows_are_equal_bit_for_bit_however_a_text_is_cut_into_passes(
    token_ids: list[int], widths: list[int], seed: int
) -> None:
    law = TableLaw(seed, disagreement=0.3)
    whole = law.logits(np.array(token_ids), len(token_ids))
    model = TableModel(law)
    kv, mate = opened(model, token_ids), opened(model, PROMPT, room=200)
    rows = []
    while kv.num_tokens < len(token_ids):
        chunk = token_ids[kv.num_tokens :][: widths.pop()]
        batch = [PassSequence(mate, [65], 1), PassSequence(kv, chunk, len(chunk))]
        rows.append(model.forward(batch)[1])
    assert np.concatenate(rows).tobytes() == whole.tobytes()


@given(token_lists)
def test_probabilities_are_the_softmax_of_the_last_row(token_ids: list[int]) -> None:
    model = TableModel(TableLaw(3))
    logits = run(model, opened(model, token_ids), token_ids)[-1].astype(np.float64)
    probabilities = model.law.probabilities(token_ids)
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(
        np.log(probabilities) - np.log(probabilities[0]), logits - logits[0], atol=1e-9
    )


@given(token_lists, st.data())
def test_one_other_token_anywhere_before_changes_the_row(
    token_ids: list[int], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(token_ids) - 1))
    other = list(token_ids)
    other[place] = (other[place] + data.draw(st.integers(1, VOCAB_SIZE - 1))) % VOCAB_SIZE
    law = TableLaw(5)
    rows = [law.logits(np.array(tokens), 1) for tokens in (token_ids, other)]
    assert rows[0].tobytes() != rows[1].tobytes()


def test_a_forgotten_rollback_changes_what_follows() -> None:
    model = TableModel(TableLaw(1))
    kept, stale = (opened(model, PROMPT, room=64) for _ in range(2))
    for kv in (kept, stale):
        run(model, kv, [*PROMPT, *b" wrong"])
    model.kv_cache.truncate(kept, len(PROMPT))
    right = model.law.logits(np.array([*PROMPT, *b" right"]), 6)
    assert run(model, kept, list(b" right")).tobytes() == right.tobytes()
    assert (run(model, stale, list(b" right")) != right).any(axis=1).all()


def test_a_rollback_by_one_too_many_or_too_few_changes_what_follows() -> None:
    for shift in (-1, 1):
        model = TableModel(TableLaw(1))
        kv = opened(model, PROMPT, room=64)
        run(model, kv, [*PROMPT, *b"abc"])
        model.kv_cache.truncate(kv, len(PROMPT) + shift)
        right = model.law.logits(np.array([*PROMPT, *b"xyz"]), 3)
        assert (run(model, kv, list(b"xyz")) != right).any(axis=1).all()


def test_a_prefix_found_in_the_cache_gives_the_same_rows() -> None:
    token_ids = [*PROMPT, *b" takes the wind"]
    model = TableModel(TableLaw(1))
    first = opened(model, token_ids)
    rows = run(model, first, token_ids)
    model.kv_cache.register(first, token_ids)
    second = opened(model, token_ids)
    assert second.num_tokens == 32
    assert run(model, second, token_ids[32:]).tobytes() == rows[32:].tobytes()


def test_a_chunk_of_a_prefill_needs_no_logits() -> None:
    model = TableModel(TableLaw(1))
    kv = opened(model, PROMPT)
    assert model.forward([PassSequence(kv, PROMPT, 0)])[0].shape == (0, VOCAB_SIZE)
    assert kv.num_tokens == len(PROMPT)


def test_more_tokens_than_reserved_are_refused() -> None:
    model = TableModel(TableLaw(1))
    kv = opened(model, PROMPT, room=32)
    with pytest.raises(ValueError, match="33 tokens in a room reserved for 32"):
        run(model, kv, [65] * 33)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_a_token_outside_the_vocabulary_is_refused(token_id: int) -> None:
    model = TableModel(TableLaw(1))
    with pytest.raises(IndexError, match="261"):
        run(model, opened(model, PROMPT), [token_id])


def greedy(law: TableLaw, num_tokens: int) -> list[int]:
    token_ids = list(PROMPT)
    while len(token_ids) < len(PROMPT) + num_tokens and token_ids[-1] != EOS_ID:
        token_ids.append(int(law.probabilities(token_ids).argmax()))
    return token_ids[len(PROMPT) :]


def test_greedy_texts_are_printable_differ_by_seed_and_end() -> None:
    texts = [greedy(TableLaw(seed), 1000) for seed in range(12)]
    assert len({tuple(text) for text in texts}) == 12
    assert all(text[-1] == EOS_ID for text in texts)
    assert 50 < np.mean([len(text) for text in texts]) < 250
    assert all("\N{REPLACEMENT CHARACTER}" not in spelled(text) for text in texts)


def test_some_text_has_characters_of_more_than_one_token() -> None:
    assert any(not spelled(greedy(TableLaw(seed), 1000)).isascii() for seed in range(12))


def spelled(token_ids: list[int]) -> str:
    return bytes(token_id for token_id in token_ids if token_id < 256).decode(errors="replace")


def test_text_repeats_itself_often_enough_for_prompt_lookup() -> None:
    found = right = 0
    for seed in range(12):
        text = greedy(TableLaw(seed), 1000)
        seen: dict[tuple[int, ...], int] = {}
        for place in range(2, len(text)):
            pair = tuple(text[place - 2 : place])
            if pair in seen:
                found += 1
                right += text[seen[pair]] == text[place]
            seen[pair] = place
    assert found > 100
    assert 0.3 < right / found < 0.95


def test_a_draft_of_the_same_seed_agrees_mostly_and_another_seed_hardly() -> None:
    law = TableLaw(2)
    text = [*PROMPT, *greedy(TableLaw(2), 150)]
    contexts = [text[:end] for end in range(len(PROMPT), len(text))]
    ours = [law.probabilities(context).argmax() for context in contexts]

    def agreement(draft: TableLaw) -> float:
        return float(
            np.mean(
                [draft.probabilities(c).argmax() == o for c, o in zip(contexts, ours, strict=True)]
            )
        )

    assert agreement(TableLaw(2)) == 1
    assert 0.5 < agreement(TableLaw(2, disagreement=0.2)) < 1
    assert agreement(TableLaw(2, disagreement=1.0)) < 0.3
    assert agreement(TableLaw(3)) < 0.3


def test_a_small_vocabulary_has_noise_only_and_ends_with_its_last_id() -> None:
    law = TableLaw(1, vocab_size=8)
    probabilities = np.array(
        [law.probabilities([0, token, 3, place % 8]) for token in range(8) for place in range(64)]
    )
    assert probabilities.shape == (512, 8)
    assert (probabilities[:, :7].mean(axis=0) > 0.05).all()
    assert 0 < probabilities[:, law.eos_token_id].mean() < 0.05


def test_a_spec_names_seed_and_disagreement() -> None:
    assert TableLaw.parse("table:7") == TableLaw(7)
    assert TableLaw.parse("table:7:0.25") == TableLaw(7, disagreement=0.25)


@pytest.mark.parametrize(
    "spec", ["table", "table:", "table:x", "table:-1", "table:1:2", "table:1:nan", "chair:1"]
)
def test_a_wrong_spec_is_named_with_what_was_expected(spec: str) -> None:
    with pytest.raises(InvalidConfig, match=f"'{spec}'.*expected table:<seed>"):
        TableLaw.parse(spec)


def test_neither_the_model_nor_its_tokenizer_imports_torch() -> None:
    code = (
        "import sys; import paceline.engine.table_model, paceline.engine.table_tokenizer; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
