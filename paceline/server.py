"""A gRPC server with health and reflection, and a service's life from start to signal.

Health: `""` says that the process is alive, `<package>.<Service>` that it takes requests.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline.channel import SERVER_OPTIONS
from paceline.config import ServiceSettings, load_settings
from paceline.errors import InvalidConfig
from paceline.logs import configure_logging

logger = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


S = TypeVar("S", bound=ServiceSettings)


class GrpcServer:
    """One gRPC server for one service of ours."""

    def __init__(
        self,
        service_name: str,
        add_service: Callable[[grpc.aio.Server], None],
        interceptors: Sequence["grpc.aio.ServerInterceptor[Any, Any]"] = (),
    ) -> None:
        """`interceptors` see every call, of health and reflection too, the first one first."""
        self._service_name = service_name
        self._server = grpc.aio.server(interceptors=interceptors, options=SERVER_OPTIONS)
        self._health = cast(Any, health).aio.HealthServicer()
        add_service(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (service_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen, without being ready yet. Returns the port; raises `InvalidConfig` if taken."""
        await self._health.set(self._service_name, NOT_SERVING)
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            message = f"port: cannot listen on {host}:{port}; expected a free port of this host."
            raise InvalidConfig(message) from error
        await self._server.start()
        return bound

    async def set_ready(self, is_ready: bool) -> None:
        """Say by gRPC health whether requests are taken."""
        await self._health.set(self._service_name, SERVING if is_ready else NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s` seconds, then end them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


async def until_signalled() -> None:
    """Return at the first SIGTERM or SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def run_service(
    name: str, settings_class: type[S], serve: Callable[[S], Coroutine[Any, Any, None]]
) -> int:
    """The life of a service's process: settings from options and environment, then `serve`.

    Returns the exit status: 2, and a sentence on standard error, when a setting is wrong.
    """
    try:
        settings = load_settings(settings_class, sys.argv[1:], f"python -m {name}")
        configure_logging(settings.log_level)
        _run(serve(settings))
    except InvalidConfig as error:
        sys.stderr.write(f"{name}: {error.message}\n")
        return 2
    return 0


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run an event loop, on uvloop where it exists."""
    try:
        import uvloop
    except ImportError:  # Windows
        asyncio.run(main)
    else:
        uvloop.run(main)
