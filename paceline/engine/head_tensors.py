"""The tensors of a head, checked one by one, and those that it borrows from its target.

A head may leave out what its target has, the embeddings and the output matrix. These, and nothing
else, are then read from the target's checkpoint. Knows no method's names.

Invariant: a tensor comes in the shape and type that was asked for and holds only numbers, or the
checkpoint is refused by the tensor's name.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from paceline.engine.pickled_tensors import PickledTensors
from paceline.engine.safetensors_directory import TensorFiles
from paceline.errors import InvalidConfig
from paceline.heads.weights_file import find_weights_file

EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32)
_TARGET_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a head was made for."""

    name: str
    directory: Path
    hidden_size: int
    vocab_size: int
    """Rows of its embedding."""
    num_layers: int
    has_tied_embeddings: bool


class _Tensors(Protocol):
    @property
    def names(self) -> set[str]: ...
    def read(self, name: str) -> Tensor: ...


class HeadTensors:
    """The tensors in the directory `head`."""

    def __init__(self, head: str, allow_pickle: bool = False) -> None:
        """Raises `InvalidConfig` when there are none, or only pickles and these are not allowed."""
        self._head = head
        self._tensors = _open(head, allow_pickle)
        self.names = self._tensors.names
        self._sizes: dict[str, int] = {}

    def check_names(self, kind: str, needed: Collection[str], optional: Collection[str]) -> None:
        """Refuse a head that lacks a tensor or has one without use; `kind` is what heads it is."""
        missing = sorted(set(needed) - self.names)
        if missing:
            raise self.refused(f"lacks {len(missing)} tensors, the first {missing[0]!r}")
        unexpected = sorted(self.names - set(needed) - set(optional))
        if unexpected:
            raise self.refused(
                f"has {len(unexpected)} tensors that {kind} has no use for, the first "
                f"{unexpected[0]!r}"
            )

    def read(
        self, name: str, shape: tuple[int, ...], types: tuple[torch.dtype, ...] = FLOATS
    ) -> Tensor:
        """A tensor of the head, as it was saved, but never in more than 32 bits a number."""
        tensor = self._tensors.read(name)
        if tuple(tensor.shape) != shape:
            raise self.refused(
                f"the tensor {name!r} has the shape {list(tensor.shape)}; expected {list(shape)} "
                "by its config.json and its target"
            )
        if tensor.dtype not in types:
            raise self.refused(
                f"the tensor {name!r} is of type {tensor.dtype}; expected one of "
                f"{', '.join(map(str, types))}"
            )
        if tensor.dtype not in (*INTEGERS, torch.bool):
            self._sizes[name] = tensor.numel()
        if tensor.dtype == torch.float64:
            tensor = tensor.float()
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise self.refused(f"the tensor {name!r} holds NaN or infinity; expected numbers")
        return tensor

    @property
    def num_parameters(self) -> int:
        """Numbers of the head's own that were read: without ids, masks and what is borrowed."""
        return sum(self._sizes.values())

    def length(self, name: str) -> int:
        """Entries of a tensor whose length only the checkpoint says."""
        return self._tensors.read(name).numel()

    def read_or_borrow(self, name: str, shape: tuple[int, ...], target: Target) -> Tensor:
        """`EMBEDDING` or `OUTPUT`: the head's, or the target's in its place."""
        return self.read(name, shape) if name in self.names else self.borrow(name, shape, target)

    def borrow(self, name: str, shape: tuple[int, ...], target: Target) -> Tensor:
        """The target's `EMBEDDING` or `OUTPUT`."""
        own = TensorFiles(f"model {target.name!r}", target.directory)
        is_embedding = name == EMBEDDING or target.has_tied_embeddings
        source = _TARGET_EMBEDDING if is_embedding else OUTPUT
        if source not in own.names:
            raise self.refused(
                f"has no tensor {name!r}, and the model {target.name!r} has no {source!r} in its "
                "place"
            )
        tensor = own.read(source)
        if tuple(tensor.shape) != shape:
            raise self.refused(
                f"has no tensor {name!r}; {source!r} of the model {target.name!r} has the shape "
                f"{list(tensor.shape)}, expected {list(shape)}"
            )
        return tensor

    def refused(self, what: str) -> InvalidConfig:
        """The error that says `what` is wrong with the head."""
        return InvalidConfig(f"head {self._head!r}: {what}")


def _open(head: str, allow_pickle: bool) -> _Tensors:
    what, directory = f"head {head!r}", Path(head).expanduser()
    name = find_weights_file(head, allow_pickle)
    if name.endswith(".safetensors"):
        return TensorFiles(what, directory, name)
    return PickledTensors(what, directory / name)
