"""Sources put together: each worker once, and what is missing is said at the start."""

import sys

import pytest

from paceline.errors import InvalidConfig
from paceline.workers.discovery.endpoint import Endpoint
from paceline.workers.discovery.sources import Sources


def nothing() -> None:
    """Nobody is told."""


def test_fixed_addresses_are_there_at_once_and_each_counts_once() -> None:
    sources = Sources(["a:1", "b:2", "a:1"], nothing)
    assert sources.endpoints() == [Endpoint("a:1"), Endpoint("b:2")]
    assert sources.are_fixed
    assert [state.problem for state in sources.states()] == ["", "", ""]


def test_without_the_package_only_a_kubernetes_source_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert not Sources(["a:1", "dns:///b:2"], nothing).are_fixed
    with pytest.raises(InvalidConfig) as refusal:
        Sources(["a:1", "kubernetes://draft"], nothing)
    assert "the source kubernetes://draft needs the package kubernetes" in refusal.value.message
