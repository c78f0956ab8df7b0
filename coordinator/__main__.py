"""Starts the coordinator: settings, workers, session store, both front ends; drains at the end."""

import asyncio
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from coordinator.admission import Limits
from coordinator.config import CoordinatorSettings
from coordinator.generator import Generator
from coordinator.http.app import create_app
from coordinator.metrics import Metrics
from coordinator.servicer import SERVICE_NAME, CoordinatorServicer
from coordinator.session_store import open_session_store
from paceline.errors import InvalidConfig
from paceline.server import GrpcServer, run_service, until_signalled
from paceline.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from paceline.workers.pool import WorkerPool

logger = logging.getLogger("coordinator")

STOP_GRACE_S = 2.0


async def serve(settings: CoordinatorSettings) -> None:
    """Run until a signal, then until the running answers have ended."""
    store = await open_session_store(settings.redis_url)
    metrics = Metrics()
    pool = WorkerPool(settings.targets, settings.drafts)
    limits = Limits(
        settings.max_running_requests,
        settings.max_waiting_requests,
        settings.num_speculative_tokens,
        settings.acceptance_rule,
    )
    generator = Generator(pool, store, metrics, limits)
    server = GrpcServer(
        SERVICE_NAME,
        partial(add_CoordinatorServiceServicer_to_server, CoordinatorServicer(generator)),
    )
    grpc_port = await server.start(settings.host, settings.grpc_port)
    listener = _listen(settings.host, settings.http_port)
    http = _HttpServer(
        uvicorn.Config(
            create_app(generator, metrics),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=int(STOP_GRACE_S),
        )
    )
    pool.start()
    http_task = asyncio.create_task(http.serve(sockets=[listener]))
    tokenizer_task = asyncio.create_task(_become_ready(generator, server))
    http_port = listener.getsockname()[1]
    logger.info("HTTP on %s:%d, gRPC on %s:%d", settings.host, http_port, settings.host, grpc_port)
    await until_signalled()

    await server.set_ready(False)
    await generator.drain(settings.drain_seconds)
    tokenizer_task.cancel()
    http.should_exit = True
    await server.stop(STOP_GRACE_S)
    await http_task
    await pool.stop()
    await store.aclose()


class _HttpServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: draining is ours."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def _become_ready(generator: Generator, server: GrpcServer) -> None:
    await generator.load_tokenizer()
    await server.set_ready(True)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        message = f"http_port: cannot listen on {host}:{port}: {error.strerror}."
        raise InvalidConfig(message) from error
    return listener


if __name__ == "__main__":
    sys.exit(run_service("coordinator", CoordinatorSettings, serve))
