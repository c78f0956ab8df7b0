"""The double of a CUDA graph refuses what a card could not have captured."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.engine.paged.graphs import EagerGraph, Pass


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
