"""A directory is made once, and never seen half made."""

import multiprocessing
import time
from multiprocessing.managers import ListProxy
from pathlib import Path

import pytest

from paceline.engine.cache_directory import made_once
from paceline.errors import InvalidConfig


def fill_slowly(directory: Path, calls: "ListProxy[int]") -> None:
    def write(unfinished: Path) -> None:
        calls.append(1)
        (unfinished / "first").touch()
        time.sleep(0.3)
        (unfinished / "last").touch()

    made_once(directory, write)
    assert sorted(path.name for path in directory.iterdir()) == ["first", "last"]


def test_of_many_processes_one_writes_and_all_see_the_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        calls = manager.list()
        arguments = (tmp_path / "made", calls)
        processes = [context.Process(target=fill_slowly, args=arguments) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0]
        assert len(calls) == 1


def test_a_write_that_fails_leaves_nothing_in_the_way_of_the_next(tmp_path: Path) -> None:
    directory = tmp_path / "made"

    def fail(unfinished: Path) -> None:
        (unfinished / "half").touch()
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        made_once(directory, fail)
    assert not directory.exists()
    made_once(directory, lambda unfinished: (unfinished / "whole").touch())
    assert [path.name for path in directory.iterdir()] == ["whole"]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "made"
    with pytest.raises(InvalidConfig, match=f"directory '{directory}' cannot be written"):
        made_once(directory, lambda unfinished: None)
