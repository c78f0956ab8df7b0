"""The `config.json` of an EAGLE head, in any of the published layouts.

Those of the papers' own checkpoints are flat: EAGLE-1 and EAGLE-2 (`EAGLE-…`, arXiv 2401.15077 and
2406.16858) have the config of a Llama of one layer and differ only in the trees that were drafted
with them; EAGLE-3 (`EAGLE3-…`, arXiv 2503.01840, also written by SpecForge) is known by a key or a
class of its own and calls the layer `midlayer`. vLLM's `speculators` nests the layer's settings of
an EAGLE-3 head in `transformer_layer_config` and calls it `layers.0`. Knows nothing about tensors,
imports no torch.

Invariant: a setting that would change what the head computes is followed or refused by its name.
`max_position_embeddings` limits nothing here: published heads say 2048 for targets of 128 k.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.heads.config_file import ConfigReader, read_config_file
from paceline.heads.sizes import Size

DEFAULT_ROPE_THETA = 10000.0
"""What the paper's own code takes where a config says nothing."""

_STRETCHED = ("yarn", "llama3")
"""Rotary embeddings that depend on the length that they stretch."""
_ORIGINAL_LENGTH = "original_max_position_embeddings"

_LAYER_FIXED: Mapping[str, object] = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "layer_types": ["full_attention"],
    "pretraining_tp": 1,
}
"""What the layer is; these settings may be left out, but not be anything else."""
_LAYER_READ = frozenset(
    {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"}
    | {"rms_norm_eps", "attention_bias", "vocab_size"}
    | {"rope_theta", "rope_scaling", "rope_parameters"}
)
_HEAD_READ = frozenset(
    {"draft_vocab_size", "target_hidden_size", "norm_before_residual"}
    | {"eagle_aux_hidden_state_layer_ids"}
)
_OWN_READ = frozenset({"token_residual"})
"""Of heads that `paceline train-drafter` makes."""
_EAGLE_1_READ = frozenset({"bias", "qkv_bias"})


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What an EAGLE head is made of."""

    is_eagle3: bool
    """Otherwise it is one of EAGLE-1 or EAGLE-2."""
    layer_prefix: str
    """What the names of the layer's tensors begin with."""
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    attention_biases: str
    """Which of the projections q, k, v, o have a bias."""
    has_fc_bias: bool | None
    """None: the checkpoint shows."""
    norm_before_residual: bool
    has_token_residual: bool
    """Its residual stream begins with the token (`token_residual.py`)."""
    vocab_size: int
    """Rows of the embedding: the target's."""
    draft_vocab_size: int
    """Tokens that the head can propose."""
    layer_ids: tuple[int, ...] | None
    """The target's layers whose inputs it is fed with; None: those of the paper."""
    rope: dict[str, Any]
    """Of rotary embeddings, as transformers spells it: `rope_type`, `rope_theta` and the rest."""

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What must be the target's."""
        key = "target_hidden_size" if self.is_eagle3 else "hidden_size"
        return (
            Size(key, self.target_hidden_size, "hidden_size"),
            Size("vocab_size", self.vocab_size, "vocab_size"),
        )

    @property
    def feature_size(self) -> int:
        """Numbers per token that the head is fed with."""
        return len(self.feature_layers(0)) * self.target_hidden_size

    def feature_layers(self, num_target_layers: int) -> tuple[int, ...]:
        """The target's layers whose inputs the head is fed with.

        For EAGLE-1 and EAGLE-2 that of the target's own head, behind its last norm.
        """
        if not self.is_eagle3:
            return (num_target_layers,)
        return self.layer_ids or (2, num_target_layers // 2, num_target_layers - 3)


def read_head_config(head: str) -> HeadConfig:
    """The config of the head in the directory `head`.

    Raises:
        InvalidConfig: there is none, or it asks for something that is not supported.
    """
    table = read_config_file(head)
    if "speculators_model_type" in table:
        return _speculators(head, table)
    return _eagle_3(head, table) if _is_eagle3(table) else _eagle_1(head, table)


def is_known_eagle(table: Mapping[str, Any]) -> bool:
    """Whether this is plainly the config of an EAGLE head; one of EAGLE-1 may be any Llama's."""
    return "speculators_model_type" in table or _is_eagle3(table)


def _is_eagle3(table: Mapping[str, Any]) -> bool:
    has_own_key = any(table.get(key) is not None for key in _HEAD_READ | {"eagle_config"})
    return has_own_key or "eagle3" in str(table.get("architectures")).lower()


def _speculators(head: str, table: Mapping[str, Any]) -> HeadConfig:
    outer, nested = ConfigReader(head, table), table.get("transformer_layer_config")
    if not isinstance(nested, dict):
        raise outer.refused("transformer_layer_config", nested, "an object")
    outer.check_fixed({"speculators_model_type": "eagle3"})
    outer.check_known(_HEAD_READ | {"speculators_model_type", "transformer_layer_config"})
    layer = ConfigReader(head, nested, "transformer_layer_config.")
    layer.check_fixed(_LAYER_FIXED)
    layer.check_known(_LAYER_READ | _LAYER_FIXED.keys())
    return _made("layers.0.", outer, layer, _layer_ids(outer))


def _eagle_3(head: str, table: Mapping[str, Any]) -> HeadConfig:
    reader = ConfigReader(head, table)
    reader.check_fixed(_LAYER_FIXED)
    reader.check_known(
        _LAYER_READ | _HEAD_READ | _OWN_READ | _LAYER_FIXED.keys() | {"eagle_config"}
    )
    layer_ids = _layer_ids(reader)
    if table.get("eagle_config") is not None:
        own = ConfigReader(head, table["eagle_config"], "eagle_config.")
        own.check_fixed({"use_aux_hidden_state": True})
        own.check_known({"use_aux_hidden_state", "eagle_aux_hidden_state_layer_ids"})
        layer_ids = layer_ids or _layer_ids(own)
    return _made("midlayer.", reader, reader, layer_ids)


def _eagle_1(head: str, table: Mapping[str, Any]) -> HeadConfig:
    reader = ConfigReader(head, table)
    reader.check_fixed(_LAYER_FIXED)
    reader.check_known(_LAYER_READ | _EAGLE_1_READ | _LAYER_FIXED.keys())
    return _made("layers.0.", reader, reader, None, is_eagle3=False)


def _made(
    layer_prefix: str,
    head: ConfigReader,
    layer: ConfigReader,
    layer_ids: tuple[int, ...] | None,
    is_eagle3: bool = True,
) -> HeadConfig:
    hidden_size, num_heads = layer.count("hidden_size"), layer.count("num_attention_heads")
    vocab_size = layer.count("vocab_size")
    config = HeadConfig(
        is_eagle3=is_eagle3,
        layer_prefix=layer_prefix,
        hidden_size=hidden_size,
        target_hidden_size=head.count("target_hidden_size", hidden_size),
        intermediate_size=layer.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=layer.count("num_key_value_heads", num_heads),
        head_dim=layer.count("head_dim", hidden_size // num_heads),
        rms_norm_eps=layer.number("rms_norm_eps", 1e-6),
        attention_biases=_attention_biases(layer, is_eagle3),
        has_fc_bias=_has_fc_bias(head, is_eagle3),
        norm_before_residual=head.flag("norm_before_residual"),
        has_token_residual=head.flag("token_residual"),
        vocab_size=vocab_size,
        draft_vocab_size=head.count("draft_vocab_size", vocab_size),
        layer_ids=layer_ids,
        rope=_rope(layer),
    )
    if num_heads % config.num_kv_heads:
        expected = f"a divisor of num_attention_heads, {num_heads}"
        raise layer.refused("num_key_value_heads", config.num_kv_heads, expected)
    if config.head_dim % 2:
        raise layer.refused("head_dim", config.head_dim, "an even number")
    if config.draft_vocab_size > vocab_size:
        expected = f"at most vocab_size, {vocab_size}"
        raise head.refused("draft_vocab_size", config.draft_vocab_size, expected)
    return config


def _attention_biases(layer: ConfigReader, is_eagle3: bool) -> str:
    """`attention_bias` is transformers' for all four; `qkv_bias` that of EAGLE-1's own code."""
    if layer.flag("attention_bias"):
        return "qkvo"
    return "qkv" if not is_eagle3 and layer.flag("qkv_bias") else ""


def _has_fc_bias(head: ConfigReader, is_eagle3: bool) -> bool | None:
    return None if not is_eagle3 and head.get("bias") is None else head.flag("bias")


def _layer_ids(reader: ConfigReader) -> tuple[int, ...] | None:
    key = "eagle_aux_hidden_state_layer_ids"
    value = reader.get(key)
    if value is None:
        return None
    is_list = isinstance(value, list) and len(value) > 0
    if not is_list or any(type(layer) is not int for layer in value):
        raise reader.refused(key, value, "layers of the target as whole numbers")
    return tuple(value)


def _rope(layer: ConfigReader) -> dict[str, Any]:
    """Older configs have `rope_theta` and `rope_scaling`, newer ones one object for both.

    Without the length that they stretch, it is `max_position_embeddings`, as for transformers.
    """
    scaling = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise layer.refused("rope_scaling", scaling, "an object")
    theta = scaling.get("rope_theta") or layer.number("rope_theta", DEFAULT_ROPE_THETA)
    rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
    rope = {**scaling, "rope_type": rope_type, "rope_theta": theta}
    if rope_type in _STRETCHED and rope.get(_ORIGINAL_LENGTH) is None:
        length = layer.get("max_position_embeddings")
        if type(length) is not int or length < 1:
            expected = f"the length that the rope_type {rope_type} stretches"
            raise layer.refused(f"{_ORIGINAL_LENGTH} of the rope settings", None, expected)
        rope[_ORIGINAL_LENGTH] = length
    return rope
