"""Rotary position embedding (arXiv 2104.09864) of heads, for a position anywhere in a text."""

import math
from collections.abc import Sequence

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paceline.engine.support import ROPE_TYPES
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import HeadConfig

_FIRST_ROOM = 1024
"""Positions that are computed at first; as many again whenever they do not do."""


class RotaryAngles:
    """Cosines and sines, computed once for each position.

    How long a sequence may be is the target's business: there is no last position.
    """

    def __init__(self, config: HeadConfig, device: torch.device) -> None:
        self._rotary = rotary_embedding(config).to(device)
        self._cos_sin = torch.empty(2, 0, config.head_dim, device=device)

    def at(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of these positions, each `[1, N, head_dim]`."""
        if max(positions) >= self._cos_sin.shape[1]:
            room = _FIRST_ROOM
            while room <= max(positions):
                room *= 2
            places = torch.arange(room, device=self._cos_sin.device)
            self._cos_sin = torch.cat(self._rotary(self._cos_sin, places[None]))
        places = torch.tensor(positions).to(self._cos_sin.device)
        cos, sin = self._cos_sin[:, None, places]
        return cos, sin


def rotated(
    states: Tensor,  # [N, H, D]
    cos: Tensor,  # [1, N, D]
    sin: Tensor,
) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return states * cos[0, :, None] + turned * sin[0, :, None]


def rotary_embedding(config: HeadConfig) -> LlamaRotaryEmbedding:
    """Angles for any position: how long a sequence may be is the target's business."""
    rope_type = config.rope["rope_type"]
    if not isinstance(rope_type, str) or rope_type not in ROPE_TYPES:
        raise InvalidConfig(
            f"the head's rope_type is {rope_type!r}, which depends on the whole batch or is not "
            f"known; expected one of {', '.join(sorted(ROPE_TYPES))}"
        )
    try:
        rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=config.hidden_size,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                rope_parameters=config.rope,
            )
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, StrictDataclassError) as error:
        raise InvalidConfig(f"the head's rope settings {config.rope} are wrong: {error}") from None
    if not math.isfinite(rotary.attention_scaling) or not bool(
        torch.isfinite(rotary.inv_freq).all()
    ):
        raise InvalidConfig(
            f"the head's rope settings {config.rope} make angles that are no numbers; expected a "
            "rope_theta and a factor above 0"
        )
    return rotary
