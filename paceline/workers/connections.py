"""What is asked of a worker over gRPC, the same of drafts and targets; its messages are counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from paceline.channel import PLAIN, Access
from paceline.rounds import (
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

CONNECT_TIMEOUT_S = 5.0


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


class Connection(Protocol):
    """One channel to one worker."""

    async def get_info(self) -> WorkerInfo:
        """What the worker is."""

    def open_stream(self, traffic: Traffic) -> "RoundClient[Any, Any]":
        """Its stream of rounds."""


def connect(role: str, channel: grpc.aio.Channel, access: Access) -> Connection:
    """The service of a draft or a target behind a channel; connects when it is first used."""
    return (_TargetConnection if role == "target" else _DraftConnection)(channel, access)


async def fetch_tokenizer(address: str, access: Access = PLAIN) -> list[tuple[str, bytes]]:
    """The files of a target's tokenizer; raises `WorkerLost`."""
    files: dict[str, bytes] = {}
    async with access.open_channel(address) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        request = target_pb2.GetTokenizerRequest()
        try:
            async for part in stub.GetTokenizer(request, timeout=60, metadata=access.metadata):
                files[part.name] = files.get(part.name, b"") + part.data
        except grpc.aio.AioRpcError as error:
            raise WorkerLost(f"{error.code().name}: {error.details()}") from error
    return list(files.items())


class _TargetConnection:
    def __init__(self, channel: grpc.aio.Channel, access: Access) -> None:
        self._stub = target_pb2_grpc.TargetServiceStub(channel)
        self._metadata = access.metadata

    async def get_info(self) -> WorkerInfo:
        request = target_pb2.TargetServiceGetInfoRequest()
        response = await self._stub.GetInfo(
            request, timeout=CONNECT_TIMEOUT_S, metadata=self._metadata
        )
        return info_from_wire(response.info)

    def open_stream(self, traffic: Traffic) -> RoundClient[VerifyRound, VerifyResult]:
        return RoundClient(
            self._stub.Verify(metadata=self._metadata),
            verify_round_to_wire,
            verify_result_from_wire,
            lambda rounds, closed: traffic.sent(_write_verify(rounds, closed)),
            lambda response: _read(traffic.received(response)),
        )


class _DraftConnection:
    def __init__(self, channel: grpc.aio.Channel, access: Access) -> None:
        self._stub = draft_pb2_grpc.DraftServiceStub(channel)
        self._metadata = access.metadata

    async def get_info(self) -> WorkerInfo:
        request = draft_pb2.DraftServiceGetInfoRequest()
        response = await self._stub.GetInfo(
            request, timeout=CONNECT_TIMEOUT_S, metadata=self._metadata
        )
        return info_from_wire(response.info)

    def open_stream(self, traffic: Traffic) -> RoundClient[ProposeRound, ProposeResult]:
        return RoundClient(
            self._stub.Propose(metadata=self._metadata),
            propose_round_to_wire,
            propose_result_from_wire,
            lambda rounds, closed: traffic.sent(_write_propose(rounds, closed)),
            lambda response: _read(traffic.received(response)),
        )


def _write_verify(rounds: Sequence[Any], closed: Sequence[str]) -> Any:
    return target_pb2.VerifyRequest(rounds=rounds, closed_sequence_ids=closed)


def _write_propose(rounds: Sequence[Any], closed: Sequence[str]) -> Any:
    return draft_pb2.ProposeRequest(rounds=rounds, closed_sequence_ids=closed)


def _read(response: Any) -> tuple[Sequence[Any], WorkerLoad]:
    return response.results, load_from_wire(response.load)
