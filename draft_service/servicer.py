"""The draft service on gRPC: messages to rounds and back."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from draft_service.metrics import DraftMetrics
from paceline.engine.device_worker import DeviceWorker
from paceline.engine.round_stream import RoundStreams
from paceline.rounds import ProposeResult, ProposeRound, WorkerInfo, WorkerLoad
from paceline.telemetry.names import PROPOSE
from paceline.telemetry.round_spans import RoundSpans
from paceline.telemetry.tracer import NOT_TRACED, Tracer
from paceline.v1 import draft_pb2, draft_pb2_grpc
from paceline.wire import (
    info_to_wire,
    load_to_wire,
    propose_result_to_wire,
    propose_round_from_wire,
)

ServicerContext = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME = "paceline.v1.DraftService"


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """Serves one device worker."""

    def __init__(
        self,
        worker: DeviceWorker[ProposeRound, ProposeResult],
        info: WorkerInfo,
        metrics: DraftMetrics,
        tracer: Tracer = NOT_TRACED,
    ) -> None:
        self._streams = RoundStreams(worker)
        self._info = info
        self._metrics = metrics
        self._tracer = tracer

    async def GetInfo(
        self, request: draft_pb2.DraftServiceGetInfoRequest, context: ServicerContext
    ) -> draft_pb2.DraftServiceGetInfoResponse:
        """What this worker is."""
        return draft_pb2.DraftServiceGetInfoResponse(info=info_to_wire(self._info))

    async def Propose(
        self,
        request_iterator: AsyncIterator[draft_pb2.ProposeRequest],
        context: ServicerContext,
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        """The rounds of one caller."""
        spans = RoundSpans(self._tracer, PROPOSE, _read, self._write)
        try:
            async for response in self._streams.serve(request_iterator, spans.read, spans.write):
                yield response
        finally:
            spans.close()

    async def drain(self, timeout_s: float) -> None:
        """Take no new sequences; return when the running ones have ended or moved elsewhere."""
        await self._streams.drain(timeout_s)

    def _write(
        self, results: Sequence[ProposeResult], load: WorkerLoad
    ) -> draft_pb2.ProposeResponse:
        self._metrics.answered(results)
        messages = [propose_result_to_wire(result) for result in results]
        return draft_pb2.ProposeResponse(results=messages, load=load_to_wire(load))


def _read(request: draft_pb2.ProposeRequest) -> tuple[list[ProposeRound], Sequence[str]]:
    rounds = [propose_round_from_wire(message) for message in request.rounds]
    return rounds, request.closed_sequence_ids
