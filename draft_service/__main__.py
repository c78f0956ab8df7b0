"""Starts a draft worker: settings, drafter, device thread, server."""

import asyncio
import logging
import secrets
import sys
from dataclasses import replace
from functools import partial

from draft_service.config import DraftSettings
from draft_service.drafters.registry import make_drafter, needs_model
from draft_service.proposer import Proposer
from draft_service.servicer import SERVICE_NAME, DraftServicer
from paceline import __version__
from paceline.engine.device_worker import DeviceWorker, device_thread
from paceline.engine.worker_model import WorkerModel, build_worker_model
from paceline.rounds import WorkerInfo
from paceline.server import GrpcServer, run_service, until_signalled
from paceline.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server

logger = logging.getLogger("draft_service")

STOP_GRACE_S = 2.0


async def serve(settings: DraftSettings) -> None:
    """Run until a signal."""
    thread = device_thread("draft-device")
    loaded = None
    if needs_model(settings.drafter):
        loaded = thread.submit(build_worker_model, settings).result()
    drafter = make_drafter(settings, loaded)
    worker = DeviceWorker(Proposer(drafter, settings.max_speculative_tokens), thread)
    servicer = DraftServicer(worker, _info(settings, loaded))
    server = GrpcServer(SERVICE_NAME, partial(add_DraftServiceServicer_to_server, servicer))
    port = await server.start(settings.host, settings.port)
    worker.start()
    await server.set_ready(True)
    logger.info("draft worker (%s) listens on %s:%d", settings.drafter, settings.host, port)
    await until_signalled()
    await server.stop(STOP_GRACE_S)
    await asyncio.to_thread(worker.stop)


def _info(settings: DraftSettings, loaded: WorkerModel | None) -> WorkerInfo:
    common = WorkerInfo(
        instance_id=secrets.token_hex(8),
        version=__version__,
        max_speculative_tokens=settings.max_speculative_tokens,
        drafter=settings.drafter,
    )
    if loaded is None:
        return common
    return replace(
        common,
        model=loaded.name,
        numerics=loaded.numerics,
        tokenizer_digest=loaded.tokenizer_digest,
        vocab_size=loaded.model.vocab_size,
        max_model_len=loaded.model.max_model_len,
        pass_costs=loaded.pass_costs,
    )


if __name__ == "__main__":
    sys.exit(run_service("draft_service", DraftSettings, serve))
