"""Starts a draft worker: settings, drafter, device thread, server."""

import logging
from functools import partial

from draft_service.config import DraftSettings
from draft_service.drafters.registry import make_drafter
from draft_service.metrics import DraftMetrics
from draft_service.proposer import Proposer
from draft_service.servicer import SERVICE_NAME, DraftServicer
from paceline.engine.device_worker import DeviceWorker, device_thread
from paceline.metrics import MetricsServer
from paceline.server import GrpcServer, run_service, serve_worker
from paceline.server_security import ServerSecurity
from paceline.telemetry.tracer import start_tracing
from paceline.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server

logger = logging.getLogger("draft_service")


async def serve(settings: DraftSettings) -> None:
    """Run until a signal."""
    security = ServerSecurity.of(settings)
    tracer = start_tracing("paceline-draft")
    thread = device_thread("draft-device")
    drafter, info = thread.submit(make_drafter, settings).result()
    proposer = Proposer(drafter, settings.max_speculative_tokens, info.feature_size)
    worker = DeviceWorker(proposer, thread)
    metrics = DraftMetrics(worker, proposer.passes, info)
    servicer = DraftServicer(worker, info, metrics, tracer)
    add_service = partial(add_DraftServiceServicer_to_server, servicer)
    server = GrpcServer(SERVICE_NAME, add_service, security=security)
    metrics.instruments.show_calls(server.calls)
    metrics_server = MetricsServer(metrics.instruments, settings.host, settings.metrics_port)
    logger.info("metrics on %s", metrics_server.url)
    name = f"draft worker ({settings.drafter})"
    await serve_worker(name, server, worker, servicer.drain, settings)
    await metrics_server.stop()
    await tracer.aclose()


if __name__ == "__main__":
    run_service("draft_service", DraftSettings, serve)
