"""The double of a CUDA graph refuses what a card could not have captured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.engine.paged.graphs import CudaGraph, EagerGraph, Pass, has_room


def graph_of(function: Pass, numbers: Tensor) -> EagerGraph:
    return EagerGraph(function, numbers, torch.device("cpu"))


def test_a_graph_computes_on_other_numbers_and_leaves_its_results_in_one_place() -> None:
    graph = graph_of(lambda numbers: (numbers * 2,), torch.zeros(3, dtype=torch.int32))
    (first,) = graph.replay(torch.tensor([1, 2, 3], dtype=torch.int32))
    assert first.tolist() == [2, 4, 6]
    (second,) = graph.replay(torch.tensor([0, 0, 5], dtype=torch.int32))
    assert first is second and second.tolist() == [0, 0, 10]


def test_inputs_of_another_shape_are_refused() -> None:
    graph = graph_of(lambda numbers: (numbers * 2,), torch.zeros(3))
    with pytest.raises(AssertionError, match="inputs of one shape"):
        graph.replay(torch.zeros(4))


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda x: (x[: int(x[0])],), "it waits for a number"),
        (lambda x: (x[x > 0],), "picked by a mask"),
        (lambda x: (x.nonzero(),), "nonzero: it waits"),
        (lambda x: (x + torch.tensor([1.0, 2.0]),), "numbers of the host's"),
        (lambda x: (x * 2 if torch.equal(x, x) else x,), "equal: it waits"),
    ],
)
def test_what_looks_at_numbers_on_the_host_is_refused(function: Pass, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        graph_of(function, torch.tensor([1.0, 2.0]))


def scaled_by(number: Callable[[], float]) -> Pass:
    def function(x: Tensor) -> tuple[Tensor]:
        return (x * number(),)

    return function


def test_a_number_of_the_host_that_changes_is_refused() -> None:
    numbers = iter([3.0, 1.0, 1.0, 2.0])
    graph = graph_of(scaled_by(lambda: next(numbers)), torch.ones(2))
    graph.replay(torch.ones(2))
    with pytest.raises(AssertionError, match="the same operations every time"):
        graph.replay(torch.ones(2))


def test_a_tensor_that_lies_elsewhere_is_refused() -> None:
    table = torch.zeros(4, device="meta")
    with pytest.raises(AssertionError, match="no tensors on meta"):
        graph_of(lambda x: (table + 1,), torch.zeros(4))


class Cuda:
    """The streams of `torch.cuda` while a pass is captured; a capture fails as torch's does."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.stream: Any = SimpleNamespace(wait_stream=lambda other: None)
        self.own = self.stream
        self.modes: list[str] = []
        cuda: dict[str, Any] = {
            "current_stream": lambda device: self.stream,
            "Stream": lambda device: SimpleNamespace(wait_stream=lambda other: None),
            "CUDAGraph": object,
            "stream": self._on,
            "graph": self._capture,
        }
        for name, double in cuda.items():
            patch.setattr(torch.cuda, name, double)

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def _capture(self, graph: object, pool: object, capture_error_mode: str) -> Iterator[None]:
        self.modes.append(capture_error_mode)
        self.stream = "of the capture"
        yield
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def test_a_capture_that_fails_leaves_the_thread_on_its_own_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Cuda(monkeypatch)
    with pytest.raises(RuntimeError, match="during capture"):
        CudaGraph(lambda x: (x,), torch.ones(1), torch.device("cpu"), pool=None)
    assert cuda.stream is cuda.own
    assert cuda.modes == ["thread_local"]


def test_a_card_without_memory_to_spare_captures_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"mem_get_info": (2**29, 2**34), "memory_reserved": 2**30, "memory_allocated": 2**29}
    for name, number in free.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, number=number: number)
    assert has_room(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2**29 + 1)
    assert not has_room(torch.device("cuda"))
    assert has_room(torch.device("cpu"))
