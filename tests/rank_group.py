"""A group of ranks of which the test's own process is the first."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import HOST, number_of, reserve_port

from paceline.engine.ranks.group import TIMEOUT_S, RankGroup
from paceline.engine.ranks.place import RankPlace

ROOT = Path(__file__).parents[1]


@contextmanager
def leading(
    size: int, arguments: Sequence[str], timeout_s: float = TIMEOUT_S
) -> Iterator[tuple[RankGroup, list["subprocess.Popen[str]"]]]:
    """Rank 0's end of a group, and the processes of the others, `tests.rank_follower`.

    torch.distributed knows one group of a process at a time.
    """
    with pytest.MonkeyPatch.context() as patch:
        with reserve_port() as reserved:
            variables = {
                "WORLD_SIZE": str(size),
                "RANK": "0",
                "MASTER_ADDR": HOST,
                "MASTER_PORT": str(number_of(reserved)),
            }
            for name, value in variables.items():
                patch.setenv(name, value)
        others = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.rank_follower", *arguments],
                cwd=ROOT,
                env={**os.environ, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(1, size)
        ]
        try:
            group = RankGroup(
                RankPlace(0, size, HOST, int(variables["MASTER_PORT"]), size),
                timeout_s=timeout_s,
            )
            try:
                yield group, others
            finally:
                group.close()
        finally:
            for process in others:
                process.send_signal(signal.SIGKILL)
                process.communicate()
