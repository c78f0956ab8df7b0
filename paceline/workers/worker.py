"""One draft or target worker as its callers see it: connected, described, watched.

A task keeps the connection: asks what the worker is, checks that it fits, opens its stream of
rounds, and begins again with growing pauses when that breaks.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import grpc

from paceline.channel import PLAIN, Access
from paceline.rounds import PROTOCOL_MAJOR, WorkerInfo, WorkerLoad
from paceline.workers.connections import (
    RoleTotals,
    Traffic,
    connect,
    fetch_tokenizer,
)
from paceline.workers.discovery.pauses import Pauses
from paceline.workers.round_client import RoundBytes, RoundClient, WorkerLost

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
STEADY_S = 1.0
"""A stream that ends sooner did not work: the pauses grow on."""
SILENT = "it has not answered for a while"
DRAINING = "it shuts down, and goes on with the sequences that it has"


class UnfitWorker(Exception):
    """The worker works, but not for us: another protocol, model or tokenizer."""


class Worker:
    """A worker at one address."""

    def __init__(
        self,
        address: str,
        role: str,
        check: Callable[[WorkerInfo], None],
        on_change: Callable[[], None],
        totals: RoleTotals,
        access: Access = PLAIN,
    ) -> None:
        """`check` raises `UnfitWorker` when a worker of this description cannot be used."""
        self.address = address
        self._access = access
        self.role = role
        self.closed = ""
        """Why new sequences are not to be sent to it; empty: they are. It keeps the others."""
        self.info: WorkerInfo | None = None
        self.reason = "not connected yet"
        """Why it is not ready; empty when it is."""
        self.traffic = Traffic(totals)
        """Of all its streams so far."""
        self.pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        """Between two tries to connect."""
        self._check = check
        self._rounds: RoundClient[Any, Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._on_change = on_change
        self._stay: asyncio.Timeout | None = None
        """Runs out when the worker is to be left."""

    @property
    def is_ready(self) -> bool:
        """Whether a sequence can begin here now."""
        return self.is_connected and not self.is_draining and not self.held_back

    @property
    def held_back(self) -> str:
        """Why new sequences go elsewhere as long as they can; empty: nothing is said against it."""
        return self.closed or (SILENT if self.is_silent else "")

    @property
    def is_silent(self) -> bool:
        """Whether it owes answers and has said nothing for long."""
        return self._rounds is not None and self._rounds.is_silent

    @property
    def is_connected(self) -> bool:
        """Whether rounds can be sent now."""
        return self._rounds is not None

    @property
    def is_draining(self) -> bool:
        """Whether it shuts down, and goes on with the sequences that it has."""
        return self._rounds is not None and self._rounds.load.draining

    @property
    def drafter(self) -> str:
        """The method of a draft; empty for targets, and until it is known."""
        return self.info.drafter if self.info is not None else ""

    @property
    def wants_features(self) -> bool:
        """Whether it is a draft that is fed with the target's hidden states."""
        return self.info is not None and bool(self.info.feature_layers)

    @property
    def load(self) -> WorkerLoad:
        """Its state as of its last answer."""
        return self._rounds.load if self._rounds is not None else WorkerLoad()

    def start(self) -> None:
        """Begin to connect, and stay connected."""
        self._task = asyncio.create_task(self._stay_connected())

    async def stop(self) -> None:
        """End the connection; the worker closes our sequences."""
        if self._task is not None:
            self._task.cancel()
            self.reason = "its connection was ended"
            await asyncio.gather(self._task, return_exceptions=True)

    def results(self, round: Any, counted: RoundBytes | None = None) -> AsyncGenerator[Any, None]:
        """Send a round and yield its results; raises `WorkerLost`.

        Their bytes are counted in `counted`, if that is given.
        """
        if self._rounds is None:
            raise WorkerLost(f"{self.role} worker {self.address}: {self.reason}")
        return self._rounds.results(round, counted)

    def close_sequence(self, sequence_id: str) -> None:
        """The sequence has ended."""
        if self._rounds is not None:
            self._rounds.close_sequence(sequence_id)

    async def fetch_tokenizer(self) -> list[tuple[str, bytes]]:
        """The files of a target's tokenizer; raises `WorkerLost`."""
        return await fetch_tokenizer(self.address, self._access)

    def check_again(self) -> None:
        """What it has to fit has changed: leave it if it does not any more."""
        if self._stay is None or self.info is None or not self.is_connected:
            return
        try:
            self._check(self.info)
        except UnfitWorker as error:
            self._become(str(error))
            self._stay.reschedule(asyncio.get_running_loop().time())

    async def _stay_connected(self) -> None:
        while True:
            await self._access.look()
            channel = self._access.open_channel(self.address)
            try:
                connection = connect(self.role, channel, self._access)
                self.info = await connection.get_info()
                _check_protocol(self.info)
                self._check(self.info)
                self._rounds = connection.open_stream(self.traffic)
                self._become("")
                began = time.monotonic()
                try:
                    async with asyncio.timeout(None) as self._stay:
                        await self._run_rounds(self._rounds)
                finally:
                    if time.monotonic() - began > STEADY_S:
                        self.pauses.reset()
            except TimeoutError:  # it has been left, the reason is told
                pass
            except grpc.aio.AioRpcError as error:
                self._rounds = None
                self._become(f"{error.code().name}: {error.details()}")
            except (WorkerLost, UnfitWorker) as error:
                self._rounds = None
                self._become(str(error))
            except Exception as error:  # what no worker of ours says
                self._rounds = None
                self._become(f"it does not answer as a {self.role} worker does: {error!r}")
            finally:
                self._rounds = None
                await channel.close(None)
            await self.pauses.sleep()

    async def _run_rounds(self, rounds: RoundClient[Any, Any]) -> None:
        try:
            await rounds.run(partial(self._become, DRAINING))
        except Exception:
            self.traffic.totals.num_lost += not rounds.load.draining
            raise

    def _become(self, reason: str) -> None:
        if reason != self.reason:
            state = f"not ready: {reason}" if reason else "ready"
            logger.info("%s worker %s is %s", self.role, self.address, state)
        self.reason = reason
        self._on_change()


def _check_protocol(info: WorkerInfo) -> None:
    if info.protocol_major != PROTOCOL_MAJOR:
        raise UnfitWorker(
            f"protocol_major is {info.protocol_major}; expected {PROTOCOL_MAJOR} "
            f"(the worker runs version {info.version})"
        )
