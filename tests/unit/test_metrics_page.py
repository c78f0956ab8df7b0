"""The table of instruments says what there is, and what is there keeps the rules of names."""

import re

import pytest
from instruments import PAGE, all_instruments, by_service, with_table

IDS = ("id", "request", "session", "sequence", "address", "worker", "pod", "trace")
"""What no label may be: there is no end of them, or they come and go."""


def test_the_table_of_instruments_is_current() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run `make format`"


@pytest.mark.parametrize("one", all_instruments(), ids=lambda one: one.name)
def test_a_name_says_what_it_is(one: object) -> None:
    name, kind = one.name, one.kind  # type: ignore[attr-defined]
    assert re.fullmatch(r"paceline_[a-z0-9_]+", name)
    assert name.endswith("_total") == (kind == "counter")
    assert name.endswith("_info") == (kind == "info")
    assert not re.search(r"_(counter|gauge|count|sum|bucket|ms|milliseconds|kb)$", name)
    if kind == "histogram":
        assert name.endswith("_seconds")
    assert not set(one.labels) & set(IDS)  # type: ignore[attr-defined]
    assert one.text.endswith(".")  # type: ignore[attr-defined]


def test_a_name_means_the_same_in_every_service() -> None:
    kinds = {}
    for instruments in by_service().values():
        names = [one.name for one in instruments.described]
        assert len(names) == len(set(names))
        for one in instruments.described:
            assert kinds.setdefault(one.name, (one.kind, one.labels)) == (one.kind, one.labels)
