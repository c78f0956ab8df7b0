"""What is different for a process that is one of the ranks of a target.

Rank 0 serves as any target does, once all are there. The others do what it says: they end with it,
and when they are told to stop, they ask it to. Health is told from the beginning, since a rank may
wait long for the others, and nobody should start it again for that.

Knows nothing about what ranks say to one another. A rank that is lost ends all: in their next
exchange, or when the time is up in which it should have answered, they end with status 70.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from paceline.cores import num_cores
from paceline.engine.ranks.place import GroupBroken, RankPlace
from paceline.server import GrpcServer, end_broken, first_of, first_signal
from target_service.config import TargetSettings

logger = logging.getLogger("target_service")

TELL_S = 60.0
"""How often a rank says that it is not ready yet: models and machines may take their time."""

LOOK_S = 1.0
"""How often a rank looks whether its launcher is there."""

T = TypeVar("T")


class Follower(Protocol):
    """A rank other than 0 that is loaded."""

    def run(self) -> None:
        """Do what rank 0 says until that stops; raises `GroupBroken`."""

    def ask_to_stop(self) -> None:
        """Ask rank 0 to. From any thread."""


def settings_of_rank(settings: TargetSettings, place: RankPlace) -> TargetSettings:
    """What was left open, or cannot hold for several ranks of a host at once."""
    own: dict[str, int] = {}
    if settings.num_threads is None and place.local_size > 1:
        own["num_threads"] = max(1, num_cores() // place.local_size)
    if not place.is_first_of_host:
        own |= {"port": 0, "metrics_port": 0}
        if settings.health_port is not None:
            own["health_port"] = 0
    return settings.model_copy(update=own)


def stop_with_launcher() -> None:
    """From now on, tell this process to stop when the one that started it is gone.

    torchrun starts ranks in sessions of their own. Where it is killed nobody tells them: they would
    go on as if they were wanted, and keep their ports.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), name="launcher", daemon=True).start()


async def built(place: RankPlace, build: Callable[[], T], thread: ThreadPoolExecutor) -> T:
    """What `build` makes on the device thread together with the other ranks."""
    building = asyncio.wrap_future(thread.submit(build))
    while not (await asyncio.wait({building}, timeout=TELL_S))[0]:
        logger.info(
            "%s loads its share, or waits for other ranks at %s", place, place.meeting_point
        )
    try:
        return building.result()
    except GroupBroken as error:
        end_broken(str(place), str(error))


async def follow(
    place: RankPlace, follower: Follower, server: GrpcServer, thread: ThreadPoolExecutor
) -> None:
    """Follow rank 0 to the end. A first signal is handed on, a second one ends this process."""
    told = first_signal()
    following = asyncio.wrap_future(thread.submit(follower.run))
    await server.set_ready(True)
    logger.info("%s follows rank 0", place)
    await first_of(asyncio.wait({following}), told.wait())
    if not following.done():
        await server.set_ready(False)
        follower.ask_to_stop()
    try:
        await following
    except GroupBroken as error:
        end_broken(str(place), str(error))
    except Exception as error:  # the others cannot go on without it, and see it end
        logger.exception("a pass failed")
        end_broken(str(place), repr(error))


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(LOOK_S)
    logger.warning("the process that started this rank is gone; so this one stops")
    os.kill(os.getpid(), signal.SIGTERM)
