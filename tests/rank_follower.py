"""A rank other than the first, for tests whose own process is rank 0.

`python -m tests.rank_follower DTYPE:CHECKPOINT...` follows through one model after the other, as
long as rank 0 has one; `DTYPE:CHECKPOINT:paged` keeps its KV in blocks. Without any it only
answers.
"""

import os
import sys
from dataclasses import dataclass

from paceline.config import library_environment
from paceline.engine.device import CPU
from paceline.engine.ranks.build import load_rank
from paceline.engine.ranks.follower import Follower
from paceline.engine.ranks.group import RankGroup
from paceline.engine.ranks.messages import Kind
from paceline.engine.ranks.place import find_place
from tests.paging_cpu import PAGING_CPU


@dataclass(frozen=True)
class RankSettings:
    """The settings of a target, as far as its model goes."""

    model: str
    dtype: str = "float32"
    device: str = "cpu"
    kv_cache_tokens: int | None = 16 * 1024
    kv_memory_fraction: float | None = None
    num_threads: int | None = None
    cache_dir: str = ""
    max_model_len: int | None = None
    feature_layers: tuple[int, ...] = ()
    head: str = ""
    allow_pickle: bool = False


def main() -> None:
    """Follow."""
    place = find_place(int(os.environ["WORLD_SIZE"]), library_environment(""))
    assert place is not None
    group = RankGroup(place)
    for model in sys.argv[1:]:
        dtype, checkpoint, *layout = model.split(":")
        device = PAGING_CPU if layout else CPU
        follower = load_rank(RankSettings(checkpoint, dtype), device, group)
        assert isinstance(follower, Follower)
        follower.run()
    while len(sys.argv) == 1 and group.receive() == [Kind.TICK]:
        group.states(0)


if __name__ == "__main__":
    main()
