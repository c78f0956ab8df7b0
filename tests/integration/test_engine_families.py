"""Every supported family agrees with transformers' own forward; the rest is refused by name."""

from typing import Any

import numpy as np
import pytest
import torch
from engine_runs import extend, text
from families import FAMILIES, VOCAB_SIZE, family_model

from paceline.engine.model import Logits, PassSequence
from paceline.engine.support import VERIFIED_MODEL_TYPES, check_attention_arguments
from paceline.engine.transformer import TransformerModel
from paceline.errors import InvalidConfig

pytestmark = pytest.mark.usefixtures("several_threads")

TEXTS = [text(num_tokens, VOCAB_SIZE, seed) for seed, num_tokens in enumerate((130, 7, 60))]
TOLERANCE = 1e-4


def own_rows(model_type: str, token_ids: list[int]) -> Logits:
    with torch.inference_mode():
        rows: Logits = family_model(model_type)(torch.tensor([token_ids])).logits[0].numpy()
    return rows


def engine(model_type: str, **settings: Any) -> TransformerModel:
    return TransformerModel(family_model(model_type, **settings), VOCAB_SIZE, 1024, 4096)


def test_there_is_a_model_of_every_family() -> None:
    assert set(FAMILIES) == VERIFIED_MODEL_TYPES


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_agrees_with_transformers_alone_and_in_a_ragged_batch(model_type: str) -> None:
    model = engine(model_type)
    kvs = [model.kv_cache.open(token_ids[:1], salt="") for token_ids in TEXTS]
    starts = (90, 0, 30)
    alone = [
        extend(model, kv, token_ids[:start]) if start else np.empty((0, VOCAB_SIZE), np.float32)
        for kv, token_ids, start in zip(kvs, TEXTS, starts, strict=True)
    ]
    for kv, token_ids in zip(kvs, TEXTS, strict=True):
        assert model.kv_cache.reserve(kv, len(token_ids))
    together = model.forward(
        [
            PassSequence(kv, token_ids[start:], len(token_ids) - start)
            for kv, token_ids, start in zip(kvs, TEXTS, starts, strict=True)
        ]
    )
    for first, rest, token_ids in zip(alone, together, TEXTS, strict=True):
        rows = np.concatenate((first, rest))
        np.testing.assert_allclose(rows, own_rows(model_type, token_ids), atol=TOLERANCE)


def test_rope_scaling_that_does_not_depend_on_the_batch_is_supported() -> None:
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    with torch.inference_mode():
        own = family_model("llama", rope_parameters=scaling)(torch.tensor(TEXTS[:1])).logits[0]
    model = engine("llama", rope_parameters=scaling)
    kv = model.kv_cache.open(TEXTS[0][:1], salt="")
    np.testing.assert_allclose(extend(model, kv, TEXTS[0]), own.numpy(), atol=TOLERANCE)


MOE = {"num_local_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
MAMBA = {"num_heads": 12, "head_dim": 8, "state_size": 8, "n_groups": 2}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
            },
        },
        "rope type 'longrope'",
    ),
    "dynamic rope": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
        "rope type 'dynamic'",
    ),
    "softcap": ("gemma2", {}, "softcap"),
    "softcap of the logits": ("gemma3_text", {"final_logit_softcapping": 30.0}, "softcap"),
    "chunked attention": ("llama", {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    "mixture of experts": ("mixtral", MOE, "the weight 'model.layers.0.mlp"),
    "state space": ("mamba2", MAMBA, "layers of type 'linear_attention'"),
    "a family nobody has tried": ("cohere", {}, "'cohere' has not been verified"),
}


@pytest.mark.parametrize("feature", REFUSED)
def test_what_is_not_supported_is_refused_by_name(feature: str) -> None:
    model_type, settings, named = REFUSED[feature]
    module = family_model(model_type, **settings)
    with pytest.raises(InvalidConfig, match=named):
        TransformerModel(module, VOCAB_SIZE, 64, 4096)


def test_an_attention_argument_that_ours_lacks_is_refused_by_name() -> None:
    check_attention_arguments({"position_ids": torch.zeros(1), "softcap": None})
    for name in ("softcap", "s_aux", "attention_mask", "position_bias"):
        with pytest.raises(InvalidConfig, match=f"'{name}'"):
            check_attention_arguments({name: torch.ones(1)})


def test_attention_sinks_are_refused_when_the_layers_ask_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its experts are refused first: let them through, to see what its attention asks for.
    monkeypatch.setattr("paceline.engine.transformer.check_supported", lambda *_: None)
    module = family_model("gpt_oss", num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(InvalidConfig, match="'s_aux'"):
        TransformerModel(module, VOCAB_SIZE, 64, 4096)


def test_a_layer_that_does_not_use_our_attention_is_refused() -> None:
    module = family_model("llama")
    module.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(InvalidConfig, match="Layer 1 of the model type 'llama' does not use"):
        TransformerModel(module, VOCAB_SIZE, 64, 4096)


def test_a_half_precision_model_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="dtype is torch.float16"):
        TransformerModel(family_model("llama", torch.float16), VOCAB_SIZE, 64, 4096)


def test_a_text_longer_than_the_model_was_made_for_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="max_model_len is 4096; .* at most 2048"):
        TransformerModel(family_model("llama"), VOCAB_SIZE, 4096, 4096)


def test_numerics_tell_models_and_types_apart_and_nothing_else() -> None:
    assert engine("llama").numerics == engine("llama").numerics
    assert engine("llama").numerics != engine("llama", num_hidden_layers=2).numerics
    assert engine("llama").numerics != engine("llama", dtype=torch.bfloat16).numerics


def test_padding_rows_of_the_vocabulary_are_not_returned() -> None:
    model = TransformerModel(family_model("llama"), VOCAB_SIZE - 9, 1024, 4096)
    kv = model.kv_cache.open([1], salt="")
    assert extend(model, kv, [1, 2, 3]).shape == (3, VOCAB_SIZE - 9)
