"""The target service on gRPC: messages to rounds and back."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from paceline.engine.device_worker import DeviceWorker
from paceline.engine.round_stream import RoundStreams
from paceline.engine.tokenizer_files import TokenizerFile
from paceline.rounds import VerifyResult, VerifyRound, WorkerInfo, WorkerLoad
from paceline.telemetry.names import VERIFY
from paceline.telemetry.round_spans import RoundSpans
from paceline.telemetry.tracer import NOT_TRACED, Tracer
from paceline.v1 import target_pb2, target_pb2_grpc
from paceline.wire import (
    info_to_wire,
    load_to_wire,
    verify_result_to_wire,
    verify_round_from_wire,
)
from target_service.metrics import TargetMetrics

ServicerContext = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME = "paceline.v1.TargetService"
TOKENIZER_PART_BYTES = 1024 * 1024


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """Serves one device worker."""

    def __init__(
        self,
        worker: DeviceWorker[VerifyRound, VerifyResult],
        info: WorkerInfo,
        tokenizer_files: Sequence[TokenizerFile],
        metrics: TargetMetrics,
        tracer: Tracer = NOT_TRACED,
    ) -> None:
        self._streams = RoundStreams(worker)
        self._metrics = metrics
        self._info = info
        self._tokenizer_files = tokenizer_files
        self._tracer = tracer

    async def GetInfo(
        self, request: target_pb2.TargetServiceGetInfoRequest, context: ServicerContext
    ) -> target_pb2.TargetServiceGetInfoResponse:
        """What this worker is."""
        return target_pb2.TargetServiceGetInfoResponse(info=info_to_wire(self._info))

    async def GetTokenizer(
        self, request: target_pb2.GetTokenizerRequest, context: ServicerContext
    ) -> AsyncIterator[target_pb2.GetTokenizerResponse]:
        """The tokenizer's files in parts."""
        for file in self._tokenizer_files:
            for start in range(0, max(len(file.content), 1), TOKENIZER_PART_BYTES):
                part = file.content[start : start + TOKENIZER_PART_BYTES]
                yield target_pb2.GetTokenizerResponse(name=file.name, data=part)

    async def Verify(
        self,
        request_iterator: AsyncIterator[target_pb2.VerifyRequest],
        context: ServicerContext,
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        """The rounds of one caller."""
        spans = RoundSpans(self._tracer, VERIFY, _read, self._write)
        try:
            async for response in self._streams.serve(request_iterator, spans.read, spans.write):
                yield response
        finally:
            spans.close()

    async def drain(self, timeout_s: float) -> None:
        """Take no new sequences; return when the running ones have ended or moved elsewhere."""
        await self._streams.drain(timeout_s)

    def _write(
        self, results: Sequence[VerifyResult], load: WorkerLoad
    ) -> target_pb2.VerifyResponse:
        self._metrics.answered(results)
        messages = [verify_result_to_wire(result) for result in results]
        return target_pb2.VerifyResponse(results=messages, load=load_to_wire(load))


def _read(request: target_pb2.VerifyRequest) -> tuple[list[VerifyRound], Sequence[str]]:
    rounds = [verify_round_from_wire(message) for message in request.rounds]
    return rounds, request.closed_sequence_ids
