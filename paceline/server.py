"""A gRPC server with health and reflection, and a service's life from start to signal.

Health: `""` says that the process is alive, `<package>.<Service>` that it takes requests.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeVar, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline.addresses import with_port
from paceline.call_counts import CallCounts
from paceline.channel import SERVER_OPTIONS
from paceline.config import ServiceSettings, load_settings
from paceline.errors import InvalidConfig
from paceline.grpc_keys import KeyInterceptor
from paceline.logs import configure_logging
from paceline.server_security import OPEN, ServerSecurity

logger = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

STOP_GRACE_S = 2.0
"""How long calls may take to end when there is nothing left to wait for."""

DEVICE_BROKEN = 70
"""Exit status of a worker that can compute no more (EX_SOFTWARE of sysexits.h)."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

S = TypeVar("S", bound=ServiceSettings)


class Health:
    """What a process says of itself and of one service; may be asked before that is served."""

    def __init__(self, service_name: str) -> None:
        self._service_name = service_name
        self.servicer = cast(Any, health).aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self.port = 0
        """Where it is by itself, without TLS; 0: nowhere."""

    async def listen(self, host: str, port: int) -> None:
        """Answer on a port of its own, if that is not so yet; raises `InvalidConfig` if taken."""
        if self._server is not None:
            return
        address = with_port(host, port)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self.servicer, self._server)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            message = f"health_port: cannot listen on {address}; expected a free port."
            raise InvalidConfig(message) from error
        await self.set_ready(False)
        await self._server.start()

    async def set_ready(self, is_ready: bool) -> None:
        """Say whether the service takes requests."""
        await self.servicer.set(self._service_name, SERVING if is_ready else NOT_SERVING)

    async def stop(self) -> None:
        """End."""
        if self._server is not None:
            await self._server.stop(0)


class GrpcServer:
    """One gRPC server for one service of ours."""

    def __init__(
        self,
        service_name: str,
        add_service: Callable[[grpc.aio.Server], None] | None,
        interceptors: Sequence["grpc.aio.ServerInterceptor[Any, Any]"] = (),
        security: ServerSecurity = OPEN,
        health_of_service: Health | None = None,
    ) -> None:
        """`interceptors` see every call that `security` lets through, the first one first. Without
        `add_service` it only tells the health of that service."""
        self._security = security
        self._following: list[asyncio.Task[Any]] = []
        self.calls = CallCounts(service_name)
        """Those of our service."""
        guards = [KeyInterceptor(security.keys)] if security.keys else []
        self._server = grpc.aio.server(
            interceptors=(self.calls, *guards, *interceptors), options=SERVER_OPTIONS
        )
        self.health = health_of_service or Health(service_name)
        names = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        if add_service is not None:
            add_service(self._server)
            names.insert(0, service_name)
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, self._server)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen, without being ready yet. Returns the port; raises `InvalidConfig` if taken."""
        await self.set_ready(False)
        address = with_port(host, port)
        try:
            bound = self._security.add_port(self._server, address)
        except RuntimeError as error:
            message = f"port: cannot listen on {address}; expected a free port of this host."
            raise InvalidConfig(message) from error
        if self._security.health_port is not None:
            await self.health.listen(host, self._security.health_port)
        await self._server.start()
        self._following = self._security.follow()
        return bound

    async def set_ready(self, is_ready: bool) -> None:
        """Say by gRPC health whether requests are taken."""
        await self.health.set_ready(is_ready)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s` seconds, then end them."""
        for task in self._following:
            task.cancel()
        await self._server.stop(grace_s)
        await self.health.stop()


class Device(Protocol):
    """What computes for a worker's server."""

    def start(self) -> None:
        """Begin to take rounds."""

    def stop(self) -> None:
        """End."""

    async def until_broken(self) -> str:
        """Return, with the reason, when it will compute no more although nobody told it to stop."""

    async def until_asked_to_stop(self) -> None:
        """Return when something else than a signal has told it to stop."""


class WorkerSettings(Protocol):
    """The settings of a worker that say where it listens and how it leaves."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def drain_seconds(self) -> float: ...


async def serve_worker(
    name: str,
    server: GrpcServer,
    device: Device,
    drain: Callable[[float], Awaitable[None]],
    settings: WorkerSettings,
) -> None:
    """Serve with a model that is loaded until it is told to stop; then drain, and end.

    `drain` returns when no caller needs this worker any more, or after so many seconds. A device
    that breaks ends the process at once: its callers go elsewhere, and whoever runs it starts it
    again. A server that lives on would be sent more and more that is never answered.
    """
    port = await server.start(settings.host, settings.port)
    device.start()
    watch = asyncio.create_task(_end_when_broken(name, device))
    await server.set_ready(True)
    logger.info("%s listens on %s", name, with_port(settings.host, port))
    await first_of(first_signal().wait(), device.until_asked_to_stop())
    await server.set_ready(False)
    await drain(settings.drain_seconds)
    await server.stop(STOP_GRACE_S)
    await asyncio.to_thread(device.stop)
    watch.cancel()


async def _end_when_broken(name: str, device: Device) -> None:
    end_broken(name, await device.until_broken())


def end_broken(name: str, reason: str) -> NoReturn:
    """End the process of a worker that can compute no more."""
    logger.critical("%s ends, since it computes no more: %s", name, reason)
    logging.shutdown()
    os._exit(DEVICE_BROKEN)


async def until_signalled() -> None:
    """Return at the first SIGTERM or SIGINT; a second one ends the process at once."""
    await first_signal().wait()


def first_signal() -> asyncio.Event:
    """Set at the first SIGTERM or SIGINT from now on; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def hear() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        _end_when_signalled()
        logger.info("told to stop; a second signal ends at once")
        told.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, hear)
    return told


async def first_of(*waits: Awaitable[Any]) -> None:
    """Return with the first of these; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def run_service(
    name: str, settings_class: type[S], serve: Callable[[S], Coroutine[Any, Any, None]]
) -> NoReturn:
    """The life of a service's process: settings from options and environment, then `serve`.

    Ends the process, with status 2 and a sentence on standard error where a setting is wrong.
    """
    status = 0
    _end_when_signalled()
    try:
        settings = load_settings(settings_class, sys.argv[1:], f"python -m {name}")
        configure_logging(settings.log_level, settings.log_format)
        _run(serve(settings))
    except InvalidConfig as error:
        sys.stderr.write(f"{name}: {error.message}\n")
        sys.stderr.flush()
        status = 2
    logging.shutdown()
    # What Python and torch do at their own end takes seconds on a busy machine, keeps nothing, and
    # crashes where other ranks are still there.
    os._exit(status)


def _end_when_signalled() -> None:
    """Where nothing has to be kept. Said by ourselves, since the system ends no process 1."""
    for number in _SIGNALS:
        signal.signal(number, _end_at_once)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run an event loop, on uvloop where it exists."""
    try:
        import uvloop
    except ImportError:  # Windows
        asyncio.run(main)
    else:
        uvloop.run(main)
