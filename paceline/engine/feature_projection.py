"""The first matrix of an EAGLE-3 head, run by the target instead of the draft.

The head puts the states of several layers through `fc` before anything else. A target that does so
sends a third of the numbers; that they are rounded to halves behind the matrix and not before it
makes no more difference than the rounding itself. The digest tells a head from another that is fed
with the same layers.
"""

import hashlib
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from paceline.engine.features import packed_features
from paceline.engine.model import Features


@dataclass(frozen=True, slots=True)
class FeatureProjection:
    """A head's `fc`."""

    weight: Tensor
    """float32 `[hidden_size, feature_size]`."""
    digest: str

    @classmethod
    def of(cls, weight: Tensor) -> "FeatureProjection":
        """Of the matrix as it was saved."""
        matrix = weight.float().contiguous()
        digest = hashlib.blake2b(matrix.numpy().tobytes(), digest_size=16).hexdigest()
        return cls(matrix, digest)

    @property
    def size(self) -> int:
        """Numbers per token behind the matrix."""
        return len(self.weight)

    def project(self, features: Tensor) -> Features:
        """`[N, feature_size]` in half precision as `[N, size]`."""
        rows: Features = packed_features([F.linear(features.float(), self.weight)]).numpy()
        return rows
