"""The tensors of Medusa heads (arXiv 2401.10774), checked one by one.

The authors write head i as `{i}.{block}.linear` and `{i}.{number of blocks}`; vLLM writes
`blocks.{i}.layers.{block}` and `lm_heads.{i}`, or one `lm_head` for all. Heads may leave their
output matrices out and use the target's, whole or the rows of their draft vocabulary.

Invariant: every tensor that the heads need is there in its right shape, and no other tensor is, or
the checkpoint is refused by the tensor's name.
"""

from dataclasses import dataclass
from itertools import count, takewhile

from torch import Tensor

from paceline.engine.draft_vocabulary import read_token_map
from paceline.engine.head_tensors import OUTPUT, HeadTensors, Target
from paceline.heads.medusa_config import MedusaConfig
from paceline.heads.sizes import check_sizes

_PREFIXES = ("", "medusa_head.", "medusa_heads.")
"""What all names may begin with, as in a checkpoint of target and heads together."""


@dataclass(frozen=True, slots=True)
class Block:
    """One residual block, x + SiLU(Wx + b), as it was saved."""

    weight: Tensor
    """`[hidden_size, hidden_size]`."""
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """The tensors of all heads, as they were saved."""

    blocks: list[list[Block]]
    """Of each head."""
    outputs: list[Tensor]
    """`[draft_vocab_size, hidden_size]` of each head, or one that all heads share."""
    target_ids: Tensor
    """The target's token of each draft token, int64 `[draft_vocab_size]`."""
    num_parameters: int
    """Of the heads' own, without what they borrow from the target."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the tensors are called."""

    block: str
    """Of head and block, without `weight` or `bias`."""
    output: str
    is_authors: bool

    def num_heads(self, names: set[str]) -> int:
        """Heads that begin among these tensors."""
        firsts = (f"{self.block.format(head=head, block=0)}weight" for head in count())
        return sum(1 for _ in takewhile(names.__contains__, firsts))


def read_medusa_weights(
    head: str, config: MedusaConfig, target: Target, allow_pickle: bool = False
) -> MedusaWeights:
    """The tensors of the heads in the directory `head`, made for `target`.

    A checkpoint may hold more heads than its config counts, as the authors' own do: all are used.

    Raises:
        InvalidConfig: the heads are for a target of another shape; a tensor is missing, unexpected,
            of another shape or type, or holds ids that make no sense.
    """
    check_sizes(head, target, config.sizes)
    files = HeadTensors(head, allow_pickle)
    layout = _layout(files, config)
    num_heads = max(config.num_heads, layout.num_heads(files.names))
    if num_heads * config.num_layers > len(files.names):
        raise files.refused(
            f"has {len(files.names)} tensors; expected those of {num_heads} heads of "
            f"{config.num_layers} blocks by its config.json"
        )
    blocks = [
        [layout.block.format(head=head, block=block) for block in range(config.num_layers)]
        for head in range(num_heads)
    ]
    outputs = _outputs(files.names, config, layout, num_heads)
    _check_names(files, config, target, [name for of_head in blocks for name in of_head], outputs)
    hidden, draft_vocab_size = target.hidden_size, config.draft_vocab_size or target.vocab_size
    target_ids = read_token_map(files, draft_vocab_size, target.vocab_size)
    weights = [[_block(files, config, name, hidden) for name in of_head] for of_head in blocks]
    own_outputs = [files.read(name, (draft_vocab_size, hidden)) for name in outputs]
    return MedusaWeights(
        blocks=weights,
        outputs=own_outputs
        or [files.borrow(OUTPUT, (target.vocab_size, hidden), target)[target_ids]],
        target_ids=target_ids,
        num_parameters=files.num_parameters,
    )


def _layout(files: HeadTensors, config: MedusaConfig) -> _Layout:
    for prefix in _PREFIXES:
        authors = f"{prefix}{{head}}.{config.num_layers}.weight"
        for layout in (
            _Layout(f"{prefix}{{head}}.{{block}}.linear.", authors, True),
            _Layout(
                f"{prefix}blocks.{{head}}.layers.{{block}}.",
                f"{prefix}lm_heads.{{head}}.weight",
                False,
            ),
        ):
            if layout.num_heads(files.names):
                return layout
    raise files.refused(
        "has neither a tensor '0.0.linear.weight' nor 'blocks.0.layers.0.weight'; expected heads "
        "as the authors of Medusa or as vLLM write them"
    )


def _outputs(names: set[str], config: MedusaConfig, layout: _Layout, num_heads: int) -> list[str]:
    """One for each head, or one for all, or none where the target's is to be used."""
    own = [layout.output.format(head=head) for head in range(num_heads)]
    if config.shares_output:
        return [name for name in (OUTPUT, own[0]) if name in names][:1]
    return own if names.intersection(own) or not layout.is_authors else []


def _check_names(
    files: HeadTensors,
    config: MedusaConfig,
    target: Target,
    blocks: list[str],
    outputs: list[str],
) -> None:
    needed = {f"{name}weight" for name in blocks} | set(outputs)
    if config.has_biases:
        needed |= {f"{name}bias" for name in blocks}
    may_map = config.draft_vocab_size is not None
    if (config.draft_vocab_size or target.vocab_size) < target.vocab_size:
        needed.add("token_map")
    files.check_names("a Medusa head", needed, {"token_map"} if may_map else set())


def _block(files: HeadTensors, config: MedusaConfig, name: str, hidden: int) -> Block:
    bias = files.read(f"{name}bias", (hidden,)) if config.has_biases else None
    return Block(files.read(f"{name}weight", (hidden, hidden)), bias)
