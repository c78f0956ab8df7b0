"""The `config.json` of an EAGLE-3 head (arXiv 2503.01840), in either of two published layouts.

The layout of the paper's own checkpoints (`EAGLE3-…`, also written by SpecForge) is flat and calls
the layer `midlayer`. That of vLLM's `speculators` nests the layer's settings in
`transformer_layer_config` and calls it `layers.0`. Knows nothing about tensors, imports no torch.

Invariant: a setting that would change what the head computes is followed or refused by its name.
`max_position_embeddings` limits nothing here: published heads say 2048 for targets of 128 k.
"""

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidConfig, shown

CONFIG_FILE = "config.json"
DEFAULT_ROPE_THETA = 10000.0
"""What the paper's own code takes where a config says nothing."""

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
_WITHOUT_EFFECT = frozenset(
    {"_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"}
    | {"attention_dropout", "initializer_range", "max_position_embeddings", "max_window_layers"}
    | {"bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "tie_word_embeddings"}
    | {"return_dict", "chunk_size_feed_forward", "id2label", "label2id"}
    | {"embed_requires_grad", "enable_sp_ulysses", "speculators_version", "speculators_config"}
)
"""They are about training, saving, other classes, or the text, which the target ends."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What an EAGLE-3 head is made of."""

    layer_prefix: str
    """What the names of the layer's tensors begin with."""
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    has_attention_bias: bool
    norm_before_residual: bool
    vocab_size: int
    """Rows of the embedding: the target's."""
    draft_vocab_size: int
    """Tokens that the head can propose."""
    layer_ids: tuple[int, ...] | None
    """The target's layers whose inputs it is fed with; None: those of the paper."""
    rope: dict[str, Any]
    """Of rotary embeddings, as transformers spells it: `rope_type`, `rope_theta` and the rest."""

    @property
    def feature_size(self) -> int:
        """Numbers per token that the head is fed with."""
        return len(self.feature_layers(0)) * self.target_hidden_size

    def feature_layers(self, num_target_layers: int) -> tuple[int, ...]:
        """The target's layers whose inputs the head is fed with."""
        return self.layer_ids or (2, num_target_layers // 2, num_target_layers - 3)


def read_head_config(head: str) -> HeadConfig:
    """The config of the head in the directory `head`.

    Raises:
        InvalidConfig: there is none, or it asks for something that is not supported.
    """
    path = Path(head).expanduser() / CONFIG_FILE
    try:
        table = json.loads(path.read_text())
    except OSError as error:
        raise InvalidConfig(
            f"head {head!r}: its {CONFIG_FILE} cannot be read ({error.strerror}); expected the "
            "directory of an EAGLE-3 head"
        ) from None
    except ValueError as error:
        raise InvalidConfig(f"head {head!r}: its {CONFIG_FILE} is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise InvalidConfig(f"head {head!r}: its {CONFIG_FILE} holds no object")
    if "speculators_model_type" in table:
        return _speculators(head, table)
    return _published(head, table)


def _speculators(head: str, table: Mapping[str, Any]) -> HeadConfig:
    outer, nested = _Reader(head, table), table.get("transformer_layer_config")
    if not isinstance(nested, dict):
        raise outer.refused("transformer_layer_config", nested, "an object")
    outer.check_fixed({"speculators_model_type": "eagle3"})
    outer.check_known(_HEAD_READ | {"speculators_model_type", "transformer_layer_config"})
    layer = _Reader(head, nested, "transformer_layer_config.")
    layer.check_fixed(_LAYER_FIXED)
    layer.check_known(_LAYER_READ | _LAYER_FIXED.keys())
    return _made("layers.0.", outer, layer, outer.layer_ids())


def _published(head: str, table: Mapping[str, Any]) -> HeadConfig:
    reader = _Reader(head, table)
    reader.check_fixed(_LAYER_FIXED)
    reader.check_known(_LAYER_READ | _HEAD_READ | _LAYER_FIXED.keys() | {"eagle_config"})
    layer_ids = reader.layer_ids()
    if table.get("eagle_config") is not None:
        own = _Reader(head, table["eagle_config"], "eagle_config.")
        own.check_fixed({"use_aux_hidden_state": True})
        own.check_known({"use_aux_hidden_state", "eagle_aux_hidden_state_layer_ids"})
        layer_ids = layer_ids or own.layer_ids()
    return _made("midlayer.", reader, reader, layer_ids)


def _made(
    layer_prefix: str, head: "_Reader", layer: "_Reader", layer_ids: tuple[int, ...] | None
) -> HeadConfig:
    hidden_size, num_heads = layer.count("hidden_size"), layer.count("num_attention_heads")
    vocab_size = layer.count("vocab_size")
    config = HeadConfig(
        layer_prefix=layer_prefix,
        hidden_size=hidden_size,
        target_hidden_size=head.count("target_hidden_size", hidden_size),
        intermediate_size=layer.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=layer.count("num_key_value_heads", num_heads),
        head_dim=layer.count("head_dim", hidden_size // num_heads),
        rms_norm_eps=layer.number("rms_norm_eps", 1e-6),
        has_attention_bias=layer.flag("attention_bias"),
        norm_before_residual=head.flag("norm_before_residual"),
        vocab_size=vocab_size,
        draft_vocab_size=head.count("draft_vocab_size", vocab_size),
        layer_ids=layer_ids,
        rope=layer.rope(),
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


class _Reader:
    """Typed values out of one object of a config; refuses the others by name."""

    def __init__(self, head: str, table: Any, path: str = "") -> None:
        self._head = head
        self._table: Mapping[str, Any] = table if isinstance(table, dict) else {}
        self._path = path

    def refused(self, key: str, value: object, expected: str) -> InvalidConfig:
        return InvalidConfig(
            f"head {self._head!r}: {self._path}{key} in its {CONFIG_FILE} is {shown(value)}; "
            f"expected {expected}"
        )

    def check_fixed(self, fixed: Mapping[str, object]) -> None:
        for key, expected in fixed.items():
            value = self._table.get(key)
            if value is not None and value != expected:
                raise self.refused(key, value, f"{expected!r}, all that this version runs")

    def check_known(self, known: Set[str]) -> None:
        """Refuse what is neither known nor switched off."""
        for key, value in self._table.items():
            if value and key not in known | _WITHOUT_EFFECT:
                raise self.refused(key, value, "no such setting, this version cannot follow it")

    def count(self, key: str, default: int | None = None) -> int:
        value = self._table.get(key, default)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise self.refused(key, value, "a whole number of at least 1")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._table.get(key, default)
        if type(value) not in (int, float) or not 0.0 < value < float("inf"):
            raise self.refused(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._table.get(key)
        if value not in (None, False, True):
            raise self.refused(key, value, "true or false")
        return bool(value)

    def layer_ids(self) -> tuple[int, ...] | None:
        key = "eagle_aux_hidden_state_layer_ids"
        value = self._table.get(key)
        if value is None:
            return None
        is_list = isinstance(value, list) and len(value) > 0
        if not is_list or any(type(layer) is not int for layer in value):
            raise self.refused(key, value, "layers of the target as whole numbers")
        return tuple(value)

    def rope(self) -> dict[str, Any]:
        """Older configs have `rope_theta` and `rope_scaling`, newer ones one object for both."""
        scaling = self._table.get("rope_parameters") or self._table.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise self.refused("rope_scaling", scaling, "an object")
        theta = scaling.get("rope_theta") or self.number("rope_theta", DEFAULT_ROPE_THETA)
        rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
        return {**scaling, "rope_type": rope_type, "rope_theta": theta}
