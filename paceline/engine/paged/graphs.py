"""Passes that are captured once and replayed on other numbers.

A captured pass reads its inputs from one tensor and leaves its results in others, always the same
ones; in between it may neither look at a number on the host, nor make a tensor of numbers of the
host's, nor have shapes that depend on numbers. `CudaGraph` has CUDA record the launches.
`EagerGraph` is its double for other devices: it runs the function every time, and refuses what a
card could not have captured, so that tests without a card show what can be shown without one.

Knows nothing about what a pass is.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.engine.device import unused_memory

Results = tuple[Tensor, ...]
Pass = Callable[[Tensor], Results]

LEAST_UNUSED = 2**30
"""Bytes of a card that captures leave to what runs without one. Those of an 8B model with a
vocabulary of 128,000 tokens may come to some 4 GB, when passes of every kind have occurred."""
WARM_UP_RUNS = 2
"""Before a capture: in the first runs libraries allocate workspaces, and models their tables."""
_HOST_READS = frozenset(
    {"item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2"}
)
"""Operations that wait for the device, or whose results have shapes that depend on numbers."""
_FROM_HOST = "lift_fresh"
"""What torch does last when it makes a tensor of Python's numbers."""


class PassGraph(Protocol):
    """One captured pass."""

    def replay(self, numbers: Tensor) -> Results:
        """Run it on these numbers; the results are overwritten by the next replay."""


class CudaGraph:
    """A pass as CUDA has recorded it; all graphs of one `pool` share their memory."""

    def __init__(self, function: Pass, numbers: Tensor, device: torch.device, pool: Any) -> None:
        self._numbers = numbers.to(device)
        own, beside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        beside.wait_stream(own)
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP_RUNS):
                function(self._numbers)
        own.wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        # Where a capture fails torch stays on the stream of the capture: the outer context goes
        # back. What other threads do with CUDA meanwhile (NCCL has some) shall not make it fail.
        with (
            torch.cuda.stream(own),
            torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"),
        ):
            self._results = function(self._numbers)

    def replay(self, numbers: Tensor) -> Results:
        """Run it on these numbers; the results are overwritten by the next replay."""
        self._numbers.copy_(numbers.pin_memory(), non_blocking=True)
        self._graph.replay()
        return self._results


def has_room(device: torch.device) -> bool:
    """Whether one more graph may be captured there: each keeps memory for its results."""
    return device.type != "cuda" or unused_memory(device) >= LEAST_UNUSED


class EagerGraph:
    """A pass that could be captured, run each time; an assertion fails for one that could not."""

    def __init__(self, function: Pass, numbers: Tensor, device: torch.device) -> None:
        self._function = function
        self._numbers = torch.empty_like(numbers, device=device).copy_(numbers)
        function(self._numbers)
        results, self._operations = self._run()
        self._results = tuple(result.clone() for result in results)

    def replay(self, numbers: Tensor) -> Results:
        """Run it on these numbers; the results are overwritten by the next replay."""
        assert numbers.shape == self._numbers.shape, "a graph has inputs of one shape"
        self._numbers.copy_(numbers)
        results, operations = self._run()
        assert operations == self._operations, "a graph is the same operations every time"
        for kept, result in zip(self._results, results, strict=True):
            kept.copy_(result)
        return self._results

    def _run(self) -> tuple[Results, list[Any]]:
        with _Recorder(self._numbers.device) as recorder:
            return self._function(self._numbers), recorder.operations


class _Recorder(TorchDispatchMode):
    """Notes operations with all that a graph would fix of them, and refuses what it could not."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._device = device
        self.operations: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in _HOST_READS, f"a graph cannot have {name}: it waits for a number"
        assert name != _FROM_HOST, "a graph cannot make a tensor of numbers of the host's"
        kwargs = kwargs or {}
        self.operations.append((str(func), self._fixed(args), self._fixed(kwargs)))
        return func(*args, **kwargs)

    def _fixed(self, value: Any) -> Any:
        """What of an argument is the same in every replay."""
        if isinstance(value, Tensor):
            is_mask = value.dtype == torch.bool and value.ndim == 1
            assert not is_mask, "a graph has no rows picked by a mask"
            assert value.device == self._device, f"a graph has no tensors on {value.device}"
            return tuple(value.shape), value.dtype
        if isinstance(value, list | tuple):
            return tuple(self._fixed(entry) for entry in value)
        if isinstance(value, dict):
            return tuple((key, self._fixed(entry)) for key, entry in sorted(value.items()))
        return repr(value)
