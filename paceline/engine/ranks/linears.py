"""Linear layers of which each rank has a part, and what the ranks exchange to make them whole.

Exact as the parts are: what is added to or put beside one another depends on no other row.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.engine.elementwise import apply_row_exact
from paceline.engine.linear import ExactLinear, LinearFactory
from paceline.engine.module_linears import WholeLinears, drop_weights
from paceline.engine.ranks.group import RankGroup


class Style(Enum):
    """How a layer is divided; the values are transformers' names for the same."""

    WHOLE = "replicate"
    COLUMNS = "colwise"
    """Each rank has some outputs, and whatever follows takes those."""
    JOINED_COLUMNS = "colwise_gather_output"
    """As `COLUMNS`, but what follows takes all."""
    ROWS = "rowwise"
    """Each rank has some inputs, and is given those; the result is the sum over the ranks."""
    ROWS_OF_WHOLE = "rowwise_split_input"
    """As `ROWS`, but what comes before gives all inputs."""
    HEAD = "head"
    """The logits: each rank has some, rank 0 wants all."""
    TIED_HEAD = "tied head"
    """As `HEAD`, of a weight that is the embeddings' and so is whole here."""


class ShardedLinears:
    """Makes one rank's layers of a model."""

    def __init__(
        self, factory: LinearFactory, group: RankGroup, styles: Mapping[nn.Linear, Style]
    ) -> None:
        self._factory = factory
        self._whole = WholeLinears(factory)
        self._group = group
        self._styles = styles

    def of(self, *modules: nn.Linear) -> ExactLinear:
        """One layer of all the modules' outputs; the modules' own weights are dropped."""
        module = modules[0]
        (style,) = {self._styles[module] for module in modules}
        if style in (Style.WHOLE, Style.COLUMNS):
            return self._whole.of(*modules)
        assert len(modules) == 1, "only layers that exchange nothing are run as one"
        group, bias = self._group, None if module.bias is None else module.bias.data
        if style in (Style.ROWS, Style.ROWS_OF_WHOLE):
            linear = self._factory.make(module.weight.data, None)
            drop_weights(modules)
            inputs = None
            if style is Style.ROWS_OF_WHOLE:
                inputs = _own(split(module.in_features, group.size), group.rank)
            return _Summed(linear, bias, group, inputs)
        widths = split(module.out_features, group.size)
        if style is Style.TIED_HEAD:
            rows = _own(widths, group.rank)
            linear = self._factory.make(
                module.weight.data[rows], None if bias is None else bias[rows]
            )
        else:
            linear = self._whole.of(module)
        return _Joined(linear, widths, group, is_head=style is not Style.JOINED_COLUMNS)


def split(length: int, size: int) -> Sequence[int]:
    """What each rank has of `length` outputs or inputs, as torch and transformers divide it."""
    lengths = [len(part) for part in torch.arange(length).chunk(size)]
    return lengths + [0] * (size - len(lengths))


def _own(widths: Sequence[int], rank: int) -> slice:
    start = sum(widths[:rank])
    return slice(start, start + widths[rank])


class _Unfused:
    """Sums, products and SiLUs behind a layer that is not complete before the exchange."""

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x) + other

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x) * other

    def silu(self, x: Tensor) -> Tensor:
        return apply_row_exact(functional.silu, self(x))


class _Summed(_Unfused):
    """The sum over the ranks of what each makes of its inputs, which are `inputs` of all."""

    def __init__(
        self, linear: ExactLinear, bias: Tensor | None, group: RankGroup, inputs: slice | None
    ) -> None:
        self._linear = linear
        self._bias = bias
        self._group = group
        self._inputs = inputs

    def __call__(self, x: Tensor) -> Tensor:
        part = x if self._inputs is None else x[:, self._inputs].contiguous()
        total = self._group.sum_in_rank_order(self._linear(part))
        return total if self._bias is None else total + self._bias


class _Joined(_Unfused):
    """The outputs of all ranks side by side; those of a head at rank 0 alone."""

    def __init__(
        self, linear: ExactLinear, widths: Sequence[int], group: RankGroup, is_head: bool
    ) -> None:
        self._linear = linear
        self._widths = widths
        self._join = group.collect_columns if is_head else group.join_columns

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] == 0:  # nobody wants logits of this pass
            return x.new_empty(0, sum(self._widths))
        return self._join(self._linear(x), self._widths)
