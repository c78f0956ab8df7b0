"""The seam between a model's layers and the memory of its KV: how passes see both.

A layout keeps keys and values, and lets the rows of a planned pass attend to them. There are two:
`ContiguousLayout`, for CPUs, and `PagedLayout` (`paceline.engine.paged`), for cards.
"""

from typing import Any, Protocol

from torch import Tensor

from paceline.engine.pass_plan import PassPlan


class RowAttention(Protocol):
    """The attention of all rows of one pass."""

    def attend(
        self,
        layer: int,
        query: Tensor,  # [N, num_heads, head_dim]
        key_value: Tensor,  # [N, 2, num_kv_heads, head_dim]
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """Store the rows' keys and values and return `[N, num_heads * head_dim]`."""


class Decoder(Protocol):
    """The layers of a model."""

    def run(
        self,
        token_ids: Tensor,  # [N]
        positions: Tensor,  # [N]
        wanted_rows: Tensor,  # [R]
        attention_pass: RowAttention,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits `[R, V]` and the features `[N, feature_size]`."""


class KVLayout(Protocol):
    """How keys and values lie in memory."""

    @property
    def storage(self) -> Any:
        """Makes what they are kept in: a `KVStorage` and a `TreeRoom` of the layout's own type."""

    def run(self, plan: PassPlan[Any]) -> tuple[Tensor, Tensor]:
        """Write the keys and values of all rows.

        Return the logits `[R, V]` of those that are wanted, and the features
        `[at least N, feature_size]`.
        """
