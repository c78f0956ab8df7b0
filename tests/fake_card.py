"""A card without numbers: torch's fake tensors, which have a device and a shape, and no card.

They refuse to be put together across devices, as real ones do. A torch without CUDA cannot index
them from Python, so indexing is put into operations here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from device_double import CudaDouble
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.overrides import TorchFunctionMode

CARD = torch.device("cuda", 0)


class FakeCard(CudaDouble):
    """The device of a worker whose tensors are fakes on `CARD`."""

    def __init__(self) -> None:
        super().__init__()
        self.torch_device = CARD


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made within are fakes; real ones of the CPU may be used too."""
    limit = fake_tensor.CONSTANT_NUMEL_LIMIT
    fake_tensor.CONSTANT_NUMEL_LIMIT = 0  # numbers that are kept would be moved for real
    try:
        with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True), _Indexing():
            yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT = limit


class _Indexing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            view, indices = _view(*args)
            return torch.ops.aten.index(view, indices) if indices else view
        if func is Tensor.__setitem__:
            view, indices = _view(*args[:2])
            value = args[2] if isinstance(args[2], Tensor) else torch.full((), args[2])
            value = value.to(view.device, view.dtype) if value.ndim == 0 else value
            if indices:
                torch.ops.aten.index_put_(view, indices, value)
            else:
                _copy(view, value)
            return None
        if func is Tensor.copy_:
            return _copy(*args)
        if func is Tensor.contiguous:
            return torch.ops.aten.clone(*args, memory_format=torch.contiguous_format)
        return func(*args, **(kwargs or {}))


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return torch.ops.aten.copy_.default(target, source)


def _view(x: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """`x` indexed by all that gives a view, and the tensors that are left to index it by."""
    parts = [*index] if isinstance(index, tuple) else [index]
    num_taken = sum(part is not None and part is not Ellipsis for part in parts)
    indices: list[Tensor | None] = []
    dim = 0
    for part in parts:
        if part is None:
            x = x.unsqueeze(dim)
        elif part is Ellipsis:
            dim += x.ndim - dim - (num_taken - sum(i is not None for i in indices))
            continue
        elif isinstance(part, int):
            x = x.select(dim, part)
            continue
        elif isinstance(part, slice):
            x = torch.ops.aten.slice(x, dim, part.start, part.stop, part.step or 1)
        else:
            indices += [None] * (dim - len(indices))
            tensor = part if isinstance(part, Tensor) else torch.tensor(part)
            indices.append(tensor.to(x.device))
        dim += 1
    return x, indices
