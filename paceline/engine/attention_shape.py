"""The heads of a model's attention, the same in every layer."""

from dataclasses import dataclass

from transformers import PreTrainedConfig

from paceline.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Numbers of heads, and the size of each."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "AttentionShape":
        """The shape that a configuration describes.

        Raises `InvalidConfig` if it describes no attention.
        """
        for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
            if getattr(config, name, None) is None:
                raise InvalidConfig(
                    f"The model type '{config.model_type}' has no '{name}' in its configuration; "
                    "a model with the same attention in every layer was expected."
                )
        num_heads = config.num_attention_heads
        return cls(
            num_layers=config.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        )
