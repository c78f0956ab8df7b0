"""Starts a target worker: settings, model, device thread, server."""

import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from paceline import __version__
from paceline.addresses import with_port
from paceline.config import variables_of_launchers
from paceline.engine.device_worker import DeviceWorker, device_thread
from paceline.engine.grammar import Grammars
from paceline.engine.ranks.place import TORCHRUN_VARIABLE, RankPlace, find_place
from paceline.engine.ranks.place import VARIABLES as RANK_VARIABLES
from paceline.engine.worker_model import WorkerModel, build_worker_model, prepare_torch
from paceline.metrics import Instruments, MetricsServer
from paceline.rounds import WorkerInfo
from paceline.server import STOP_GRACE_S, GrpcServer, Health, run_service, serve_worker
from paceline.server_security import ServerSecurity
from paceline.telemetry.tracer import start_tracing
from paceline.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.config import TargetSettings
from target_service.metrics import TargetMetrics
from target_service.rank import built, follow, settings_of_rank, stop_with_launcher
from target_service.servicer import SERVICE_NAME, TargetServicer
from target_service.verifier import Verifier, VerifierLimits

logger = logging.getLogger("target_service")


async def serve(settings: TargetSettings) -> None:
    """Run until a signal."""
    variables = variables_of_launchers((*RANK_VARIABLES, TORCHRUN_VARIABLE))
    place = find_place(settings.tensor_parallel_size, variables)
    if place is not None:
        settings = settings_of_rank(settings, place)
        if TORCHRUN_VARIABLE in variables:
            stop_with_launcher()
    security = ServerSecurity.of(settings)
    thread = device_thread("target-device")
    health = Health(SERVICE_NAME)
    if place is None:
        loaded = thread.submit(
            build_worker_model,
            settings,
            settings.max_model_len,
            settings.feature_layers,
            settings.head,
            settings.allow_pickle,
        ).result()
        await _serve(settings, security, thread, loaded, health)
        return
    build = partial(_build_rank, settings, place)
    if place.rank > 0:
        await _follow(settings, security, thread, place, build)
        return
    if settings.health_port is not None:
        await health.listen(settings.host, settings.health_port)
    await _serve(settings, security, thread, await built(place, build, thread), health)


async def _follow(
    settings: TargetSettings,
    security: ServerSecurity,
    thread: ThreadPoolExecutor,
    place: RankPlace,
    build: Callable[[], Any],
) -> None:
    server = GrpcServer(SERVICE_NAME, None, security=security)
    port = await server.start(settings.host, settings.port)
    # Of the process only: what the group does rank 0 counts.
    metrics_server = MetricsServer(Instruments(), settings.host, settings.metrics_port)
    logger.info(
        "%s tells its health on %s, metrics on %s",
        place,
        with_port(settings.host, port),
        metrics_server.url,
    )
    await follow(place, await built(place, build, thread), server, thread)
    await server.stop(STOP_GRACE_S)
    await metrics_server.stop()


def _build_rank(settings: TargetSettings, place: RankPlace) -> Any:
    """Rank 0 as any model of a worker, or a `Follower`."""
    prepare_torch(settings, place.local_rank)
    from paceline.engine.ranks.build import build_rank

    return build_rank(settings, place)


async def _serve(
    settings: TargetSettings,
    security: ServerSecurity,
    thread: ThreadPoolExecutor,
    loaded: WorkerModel,
    health: Health,
) -> None:
    tracer = start_tracing("paceline-target")
    limits = VerifierLimits(settings.max_batch_tokens, settings.max_speculative_tokens)
    grammars = Grammars.of_tokenizer(loaded.tokenizer_files, loaded.model.vocab_size)
    verifier = Verifier(loaded.model, limits, grammars)
    worker = DeviceWorker(verifier, thread, loaded.group)
    info = _info(loaded, verifier, settings)
    metrics = TargetMetrics(worker, verifier.passes, loaded.model.kv_cache, info, loaded.group)
    servicer = TargetServicer(worker, info, loaded.tokenizer_files, metrics, tracer)
    add_service = partial(add_TargetServiceServicer_to_server, servicer)
    server = GrpcServer(SERVICE_NAME, add_service, security=security, health_of_service=health)
    metrics.instruments.show_calls(server.calls)
    metrics_server = MetricsServer(metrics.instruments, settings.host, settings.metrics_port)
    logger.info("metrics on %s", metrics_server.url)
    name = f"target worker of {loaded.name}"
    await serve_worker(name, server, worker, servicer.drain, settings)
    await metrics_server.stop()
    await tracer.aclose()


def _info(loaded: WorkerModel, verifier: Verifier, settings: TargetSettings) -> WorkerInfo:
    return WorkerInfo(
        instance_id=secrets.token_hex(8),
        version=__version__,
        model=loaded.name,
        numerics=loaded.numerics,
        tokenizer_digest=loaded.tokenizer_digest,
        vocab_size=loaded.model.vocab_size,
        max_model_len=verifier.max_length,
        max_speculative_tokens=settings.max_speculative_tokens,
        pass_costs=loaded.pass_costs,
        feature_layers=loaded.feature_layers,
        feature_size=loaded.model.feature_size if loaded.feature_layers else 0,
        feature_projection=loaded.feature_projection,
        started_at_ms=time.time_ns() // 1_000_000,
        varies_with_width=loaded.varies_with_width,
    )


if __name__ == "__main__":
    run_service("target_service", TargetSettings, serve)
