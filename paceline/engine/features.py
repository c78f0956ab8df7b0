"""Hidden states of a model as its drafters get them: in half precision, several layers in a row.

Layers are counted as transformers counts hidden states: i is the input of layer i, and the number
of layers is what the head is fed with, behind the last norm.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import InvalidConfig

_MOST = torch.finfo(torch.float16).max


def packed_features(states: Sequence[Tensor]) -> Tensor:
    """`[N, size]` of each layer as `[N, sum of sizes]`; what is too large for halves is cut."""
    if not states:
        return torch.empty((0, 0), dtype=torch.float16)
    return torch.cat([*states], dim=-1).clamp(-_MOST, _MOST).half()


def check_feature_layers(feature_layers: Sequence[int], num_layers: int) -> None:
    """Raise `InvalidConfig` for a layer that the model does not have."""
    for layer in feature_layers:
        if not 0 <= layer <= num_layers:
            raise InvalidConfig(
                f"feature_layers: {layer} is not a layer of the model; expected 0 to "
                f"{num_layers - 1} for the input of a layer, {num_layers} for that of the head."
            )
