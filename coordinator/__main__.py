"""Starts the coordinator: settings, workers, session store, both front ends; drains at the end."""

import asyncio
import logging
from functools import partial

from coordinator.admission import Limits
from coordinator.config import CoordinatorSettings
from coordinator.generator import Generator
from coordinator.http.app import create_app
from coordinator.http.server import HttpServer
from coordinator.metrics import Metrics
from coordinator.redis_access import access_to_redis
from coordinator.servicer import SERVICE_NAME, CoordinatorServicer
from coordinator.session_store import open_session_store
from coordinator.worker_access import access_to_workers
from paceline.addresses import with_port
from paceline.server import STOP_GRACE_S, GrpcServer, run_service, until_signalled
from paceline.server_security import ServerSecurity
from paceline.telemetry.tracer import start_tracing
from paceline.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from paceline.workers.pool import WorkerPool

logger = logging.getLogger("coordinator")


async def serve(settings: CoordinatorSettings) -> None:
    """Run until a signal, then until the running answers have ended."""
    tracer = start_tracing("paceline-coordinator")
    metrics = Metrics()
    store = await open_session_store(
        settings.redis_url, watch=metrics.store_called, access=access_to_redis(settings)
    )
    security = ServerSecurity.of(settings)
    pool = WorkerPool(settings.targets, settings.drafts, access_to_workers(settings))
    limits = Limits(
        settings.max_running_requests,
        settings.max_waiting_requests,
        settings.num_speculative_tokens,
        settings.acceptance_rule,
    )
    generator = Generator(pool, store, metrics, limits)
    servicer = CoordinatorServicer(generator, security.keys, tracer)
    server = GrpcServer(
        SERVICE_NAME,
        partial(add_CoordinatorServiceServicer_to_server, servicer),
        security=security,
    )
    metrics.instruments.show_calls(server.calls)
    app = create_app(generator, metrics, security.keys, tracer)
    http = HttpServer(app, settings.host, settings.http_port, security.http_context())
    lag_task = asyncio.create_task(metrics.instruments.watch_loop())
    grpc_port = await server.start(settings.host, settings.grpc_port)
    pool.start()
    http.start()
    tokenizer_task = asyncio.create_task(_become_ready(generator, server))
    addresses = [with_port(settings.host, port) for port in (http.port, grpc_port)]
    logger.info("HTTP on %s, gRPC on %s", *addresses)
    await until_signalled()

    tokenizer_task.cancel()
    await server.set_ready(False)
    http.drain()
    await generator.drain(settings.drain_seconds)
    await asyncio.gather(server.stop(STOP_GRACE_S), http.stop())
    lag_task.cancel()
    await store.aclose()
    await tracer.aclose()


async def _become_ready(generator: Generator, server: GrpcServer) -> None:
    await generator.load_tokenizer()
    await server.set_ready(True)


if __name__ == "__main__":
    run_service("coordinator", CoordinatorSettings, serve)
