"""The bundled model's rows of logits have the same bits, however they were computed."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from engine_runs import extend, fresh_rows, same_bits
from real_tokenizers import smollm2_tokenizer

from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.loading import load_model
from paceline.engine.model import Logits, PassSequence
from paceline.engine.transformer import TransformerModel

LENGTH = 530
PROSE = "A pass over the mountains takes a day on foot, and less than an hour by train. " * 40


@pytest.fixture(scope="module")
def text() -> list[int]:
    return list(smollm2_tokenizer().encode(PROSE))[:LENGTH]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(dtype: str) -> Iterator[TransformerModel]:
    loaded = load_model(DEFAULT_MODEL, dtype=dtype, device="cpu")
    model = TransformerModel(loaded.module, loaded.vocab_size, 1024, 8 * 1024)
    yield model
    assert model.kv_cache.num_used == 0


@pytest.fixture(scope="module")
def rows(model: TransformerModel, text: list[int]) -> Logits:
    return fresh_rows(model, text)


def test_its_rows_agree_with_transformers(rows: Logits, text: list[int], dtype: str) -> None:
    loaded = load_model(DEFAULT_MODEL, dtype=dtype, device="cpu")
    with torch.inference_mode():
        own = loaded.module(torch.tensor([text])).logits[0].float().numpy()
    if dtype == "float32":
        np.testing.assert_allclose(rows, own, atol=2e-3)
    assert (rows.argmax(1) == own.argmax(1)).mean() > (0.99 if dtype == "float32" else 0.9)


def test_prefill_verification_and_decoding_give_the_same_rows(
    model: TransformerModel, rows: Logits, text: list[int]
) -> None:
    kv = model.kv_cache.open(text[:1], salt="")
    extend(model, kv, text[:90], chunk=64)
    for position, widths in ((100, range(1, 17)), (505, (1, 2, 5, 8, 16)), (511, (1, 2, 9))):
        extend(model, kv, text[kv.num_tokens : position])
        for width in widths:
            model.kv_cache.truncate(kv, position)
            part = text[position : position + width]
            assert same_bits(extend(model, kv, part), rows[position : position + width])
        model.kv_cache.truncate(kv, position)
    model.kv_cache.register(kv, text)
    warm = model.kv_cache.open(text, salt="")
    assert warm is not kv and warm.num_tokens >= 496
    assert same_bits(extend(model, warm, text[warm.num_tokens :]), rows[496:][-34:])
    model.kv_cache.release(warm)
    model.kv_cache.release(kv)


def test_each_path_of_a_tree_gives_the_same_rows(
    model: TransformerModel, rows: Logits, text: list[int]
) -> None:
    """The text is the last branch and other tokens stand before it, so every row of it comes late
    and after others in its place."""
    parents = (-1, 0, 0, -1, 3, -1, 5, 5, 7, 8)
    own = (5, 7, 8, 9)  # the drafts that are the text, one behind the other
    for position in (100, 509):
        kv = model.kv_cache.open(text[:1], salt="")
        extend(model, kv, text[: position - 1])
        drafts = [11, 12, 13, 14, 15, 0, 16, 0, 0, 0]
        for offset, index in enumerate(own):
            drafts[index] = text[position + offset]
        assert model.kv_cache.reserve(kv, position + len(own))
        work = PassSequence(kv, [text[position - 1], *drafts], 11, parents)
        (found,) = model.forward([work])
        expected = rows[position - 1 : position + len(own)]
        assert same_bits(found[[0, *(1 + index for index in own)]], expected)
        model.kv_cache.keep_path(kv, own)
        following = position + len(own)
        assert kv.num_tokens == following
        found = extend(model, kv, text[following : following + 2])
        assert same_bits(found, rows[following : following + 2])
        model.kv_cache.release(kv)


def test_a_batch_of_sequences_of_different_widths_gives_the_same_rows(
    model: TransformerModel, rows: Logits, text: list[int]
) -> None:
    places = ((0, 300), (64, 1), (128, 8), (200, 3), (509, 6), (400, 1))
    batch = []
    for start, width in places:
        kv = model.kv_cache.open(text[:1], salt="")
        if start:
            extend(model, kv, text[:start])
        assert model.kv_cache.reserve(kv, start + width)
        batch.append(PassSequence(kv, text[start : start + width], width))
    for part, found, (start, width) in zip(batch, model.forward(batch), places, strict=True):
        assert same_bits(found, rows[start : start + width])
        model.kv_cache.release(part.kv)
