"""The hidden states that a target keeps for drafters: transformers' own, and always the same."""

from functools import cache

import numpy as np
import pytest
import torch
from engine_runs import extend, text
from families import VOCAB_SIZE, family_model

from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import Features, PassSequence
from paceline.engine.transformer import TransformerModel
from paceline.errors import InvalidConfig

pytestmark = pytest.mark.usefixtures("several_threads")

TEXT = text(100, VOCAB_SIZE)
LAYERS = (1, 3, 0)
"""The input of a layer, what the head is fed with, the embeddings."""
MODEL_TYPES = ["llama", "qwen3", "gemma3_text"]


@cache
def engine(model_type: str) -> TransformerModel:
    model = family_model(model_type)
    return TransformerModel(model, VOCAB_SIZE, 1024, 16 * 1024, feature_layers=LAYERS)


def opened(model: TransformerModel, token_ids: list[int], salt: str) -> KVSequence[object]:
    return model.kv_cache.open(token_ids, salt=salt)


def all_features(model: TransformerModel, kv: KVSequence[object]) -> Features:
    return model.features(kv, 0, kv.num_tokens).copy()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_they_are_transformers_hidden_states(model_type: str) -> None:
    model = engine(model_type)
    kv = opened(model, TEXT[:1], "own")
    extend(model, kv, TEXT)
    with torch.inference_mode():
        states = family_model(model_type)(torch.tensor([TEXT]), output_hidden_states=True)
    expected = torch.cat([states.hidden_states[layer][0] for layer in LAYERS], dim=-1).numpy()
    features = all_features(model, kv)
    assert features.shape == (len(TEXT), model.feature_size) == expected.shape
    np.testing.assert_allclose(features, expected, rtol=2e-3, atol=2e-3)
    model.kv_cache.release(kv)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_they_have_the_same_bits_however_they_were_computed(model_type: str) -> None:
    model = engine(model_type)
    at_once = opened(model, TEXT[:1], "at once")
    extend(model, at_once, TEXT)
    in_parts = opened(model, TEXT[:1], "in parts")
    extend(model, in_parts, TEXT[:37], chunk=16)
    extend(model, in_parts, [5, 6, 7])  # rejected drafts
    model.kv_cache.truncate(in_parts, 37)
    other = opened(model, TEXT[:1], "other")
    assert model.kv_cache.reserve(in_parts, 100)
    assert model.kv_cache.reserve(other, 100)
    model.forward([PassSequence(other, TEXT[::-1], 0), PassSequence(in_parts, TEXT[37:], 1)])
    assert np.array_equal(all_features(model, in_parts), all_features(model, at_once))
    for kv in (at_once, in_parts, other):
        model.kv_cache.release(kv)


def test_a_prefix_that_is_found_again_brings_its_features_along() -> None:
    model = engine("llama")
    first = opened(model, TEXT, "shared")
    extend(model, first, TEXT)
    model.kv_cache.register(first, TEXT)
    second = opened(model, TEXT, "shared")
    assert second.num_tokens == 96
    assert np.array_equal(all_features(model, second), all_features(model, first)[:96])
    for kv in (first, second):
        model.kv_cache.release(kv)


def test_what_is_too_large_for_half_precision_stays_finite() -> None:
    module = family_model("llama")
    module.model.embed_tokens.weight.data *= 1e6
    model = TransformerModel(module, VOCAB_SIZE, 64, 512, feature_layers=(0,))
    kv = opened(model, TEXT[:1], "")
    extend(model, kv, TEXT[:20])
    assert np.isfinite(all_features(model, kv)).all()


def test_without_layers_nothing_is_kept() -> None:
    model = TransformerModel(family_model("llama"), VOCAB_SIZE, 64, 512)
    assert model.feature_size == 0
    kv = opened(model, TEXT[:1], "")
    extend(model, kv, TEXT[:20])
    assert all_features(model, kv).shape == (20, 0)


@pytest.mark.parametrize("layer", [-1, 4])
def test_a_layer_that_there_is_not_is_refused_with_those_that_are(layer: int) -> None:
    with pytest.raises(InvalidConfig, match=r"feature_layers: -?\d is not a layer.*0 to 2"):
        TransformerModel(family_model("llama"), VOCAB_SIZE, 64, 512, feature_layers=(0, layer))
