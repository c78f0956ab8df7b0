"""One draft or target worker as its callers see it: connected, described, watched.

A task keeps the connection: asks what the worker is, checks that it fits, opens its stream of
rounds, and begins again with growing pauses when that breaks.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc

from paceline.channel import open_channel
from paceline.rounds import (
    PROTOCOL_MAJOR,
    ProposeResult,
    ProposeRound,
    VerifyResult,
    VerifyRound,
    WorkerInfo,
    WorkerLoad,
)
from paceline.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from paceline.wire import (
    info_from_wire,
    load_from_wire,
    propose_result_from_wire,
    propose_round_to_wire,
    verify_result_from_wire,
    verify_round_to_wire,
)
from paceline.workers.round_client import RoundClient, WorkerLost

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
DRAINING = "it shuts down, and goes on with the sequences that it has"


@dataclass(slots=True)
class RoleTotals:
    """What the workers of a role have come to, those too that are gone: it never falls."""

    sent_bytes: int = 0
    received_bytes: int = 0
    num_lost: int = 0
    """Streams that broke."""


@dataclass(slots=True)
class Traffic:
    """Bytes of the messages of rounds, both ways, as protobuf writes them: frames not counted."""

    totals: RoleTotals
    sent_bytes: int = 0
    received_bytes: int = 0

    def sent(self, message: Any) -> Any:
        """Count a message that goes out, and hand it on."""
        num_bytes = message.ByteSize()
        self.sent_bytes += num_bytes
        self.totals.sent_bytes += num_bytes
        return message

    def received(self, message: Any) -> Any:
        """Count a message that has come, and hand it on."""
        num_bytes = message.ByteSize()
        self.received_bytes += num_bytes
        self.totals.received_bytes += num_bytes
        return message


class UnfitWorker(Exception):
    """The worker works, but not for us: another protocol, model or tokenizer."""


class _Connection(Protocol):
    """What differs between the two services."""

    async def get_info(self) -> WorkerInfo: ...

    def open_stream(self, traffic: Traffic) -> "RoundClient[Any, Any]": ...


class Worker:
    """A worker at one address."""

    def __init__(
        self,
        address: str,
        role: str,
        check: Callable[[WorkerInfo], None],
        on_change: Callable[[], None],
        totals: RoleTotals,
    ) -> None:
        """`check` raises `UnfitWorker` when a worker of this description cannot be used."""
        self.address = address
        self.role = role
        self.info: WorkerInfo | None = None
        self.reason = "not connected yet"
        """Why it is not ready; empty when it is."""
        self.traffic = Traffic(totals)
        """Of all its streams so far."""
        self._check = check
        self._rounds: RoundClient[Any, Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._on_change = on_change
        self._stay: asyncio.Timeout | None = None
        """Runs out when the worker is to be left."""

    @property
    def is_ready(self) -> bool:
        """Whether a sequence can begin here now."""
        return self._rounds is not None and not self._rounds.load.draining

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
            await asyncio.gather(self._task, return_exceptions=True)

    def results(self, round: Any) -> AsyncGenerator[Any, None]:
        """Send a round and yield its results; raises `WorkerLost`."""
        if self._rounds is None:
            raise WorkerLost(f"{self.role} worker {self.address}: {self.reason}")
        return self._rounds.results(round)

    def close_sequence(self, sequence_id: str) -> None:
        """The sequence has ended."""
        if self._rounds is not None:
            self._rounds.close_sequence(sequence_id)

    def check_again(self) -> None:
        """What it has to fit has changed: leave it if it does not any more."""
        if self._stay is None or self.info is None or not self.is_ready:
            return
        try:
            self._check(self.info)
        except UnfitWorker as error:
            self._become(str(error))
            self._stay.reschedule(asyncio.get_running_loop().time())

    async def _stay_connected(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            channel = open_channel(self.address)
            try:
                connection = _connect(self.role, channel)
                self.info = await connection.get_info()
                _check_protocol(self.info)
                self._check(self.info)
                self._rounds = connection.open_stream(self.traffic)
                self._become("")
                pause = FIRST_PAUSE_S
                async with asyncio.timeout(None) as self._stay:
                    await self._run_rounds(self._rounds)
            except TimeoutError:  # it has been left, the reason is told
                pass
            except grpc.aio.AioRpcError as error:
                self._rounds = None
                self._become(f"{error.code().name}: {error.details()}")
            except (WorkerLost, UnfitWorker) as error:
                self._rounds = None
                self._become(str(error))
            finally:
                self._rounds = None
                await channel.close(None)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _run_rounds(self, rounds: RoundClient[Any, Any]) -> None:
        try:
            await rounds.run(partial(self._become, DRAINING))
        except WorkerLost:
            self.traffic.totals.num_lost += not rounds.load.draining
            raise

    def _become(self, reason: str) -> None:
        if reason != self.reason:
            state = f"not ready: {reason}" if reason else "ready"
            logger.info("%s worker %s is %s", self.role, self.address, state)
        self.reason = reason
        self._on_change()


class _TargetConnection:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = target_pb2_grpc.TargetServiceStub(channel)

    async def get_info(self) -> WorkerInfo:
        request = target_pb2.TargetServiceGetInfoRequest()
        response = await self._stub.GetInfo(request, timeout=CONNECT_TIMEOUT_S)
        return info_from_wire(response.info)

    def open_stream(self, traffic: Traffic) -> RoundClient[VerifyRound, VerifyResult]:
        return RoundClient(
            self._stub.Verify(),
            verify_round_to_wire,
            lambda rounds, closed: traffic.sent(_write_verify(rounds, closed)),
            lambda response: _read_verify(traffic.received(response)),
        )


class _DraftConnection:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = draft_pb2_grpc.DraftServiceStub(channel)

    async def get_info(self) -> WorkerInfo:
        request = draft_pb2.DraftServiceGetInfoRequest()
        response = await self._stub.GetInfo(request, timeout=CONNECT_TIMEOUT_S)
        return info_from_wire(response.info)

    def open_stream(self, traffic: Traffic) -> RoundClient[ProposeRound, ProposeResult]:
        return RoundClient(
            self._stub.Propose(),
            propose_round_to_wire,
            lambda rounds, closed: traffic.sent(_write_propose(rounds, closed)),
            lambda response: _read_propose(traffic.received(response)),
        )


async def fetch_tokenizer(address: str) -> list[tuple[str, bytes]]:
    """The files of a target's tokenizer; raises `WorkerLost`."""
    files: dict[str, bytes] = {}
    async with open_channel(address) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        try:
            async for part in stub.GetTokenizer(target_pb2.GetTokenizerRequest(), timeout=60):
                files[part.name] = files.get(part.name, b"") + part.data
        except grpc.aio.AioRpcError as error:
            raise WorkerLost(f"{error.code().name}: {error.details()}") from error
    return list(files.items())


def _connect(role: str, channel: grpc.aio.Channel) -> _Connection:
    return _TargetConnection(channel) if role == "target" else _DraftConnection(channel)


def _check_protocol(info: WorkerInfo) -> None:
    if info.protocol_major != PROTOCOL_MAJOR:
        raise UnfitWorker(
            f"protocol_major is {info.protocol_major}; expected {PROTOCOL_MAJOR} "
            f"(the worker runs version {info.version})"
        )


def _write_verify(rounds: Sequence[Any], closed: Sequence[str]) -> Any:
    return target_pb2.VerifyRequest(rounds=rounds, closed_sequence_ids=closed)


def _read_verify(response: Any) -> tuple[list[VerifyResult], WorkerLoad]:
    results = [verify_result_from_wire(message) for message in response.results]
    return results, load_from_wire(response.load)


def _write_propose(rounds: Sequence[Any], closed: Sequence[str]) -> Any:
    return draft_pb2.ProposeRequest(rounds=rounds, closed_sequence_ids=closed)


def _read_propose(response: Any) -> tuple[list[ProposeResult], WorkerLoad]:
    results = [propose_result_from_wire(message) for message in response.results]
    return results, load_from_wire(response.load)
