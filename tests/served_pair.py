"""A target of transformers and a draft with a head for it, as servers of real gRPC."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from table_requests import request
from worker_servers import Answer, Cluster, WorkerServer, answer

from draft_service.config import DraftSettings
from draft_service.drafters.registry import make_drafter
from draft_service.metrics import DraftMetrics
from draft_service.proposer import Proposer
from draft_service.servicer import DraftServicer
from paceline.engine.device_worker import DeviceWorker
from paceline.engine.grammar import Grammars
from paceline.engine.transformer import TransformerModel
from paceline.engine.worker_model import build_worker_model
from paceline.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server
from paceline.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.__main__ import _info
from target_service.config import TargetSettings
from target_service.metrics import TargetMetrics
from target_service.servicer import TargetServicer
from target_service.verifier import Verifier, VerifierLimits

FEATURE_WINDOW = 16
NUMBER = 4


class Pair:
    """A target and what drafts for it, on the disk."""

    def __init__(self, model: Path, head: Path | None, drafter: str = "eagle") -> None:
        self.model, self.head, self.drafter = str(model), str(head or ""), drafter

    def target(
        self, changed: Callable[[TransformerModel], None] = lambda model: None, **settings: Any
    ) -> WorkerServer:
        head = "" if self.drafter == "early-exit" else self.head
        told = {"model": self.model, "head": head, "kv_cache_tokens": 8192} | settings
        return self._target(TargetSettings(**told), changed)

    def _target(
        self, settings: TargetSettings, changed: Callable[[TransformerModel], None]
    ) -> WorkerServer:

        def build() -> Any:
            loaded = build_worker_model(settings, None, settings.feature_layers, settings.head)
            assert isinstance(loaded.model, TransformerModel)
            changed(loaded.model)
            limits = VerifierLimits(feature_window=FEATURE_WINDOW)
            grammars = Grammars.of_tokenizer(loaded.tokenizer_files, loaded.model.vocab_size)
            verifier = Verifier(loaded.model, limits, grammars)

            def add_to(worker: DeviceWorker[Any, Any]) -> Any:
                info = _info(loaded, verifier, settings)
                metrics = TargetMetrics(worker, verifier.passes, loaded.model.kv_cache, info)
                servicer = TargetServicer(worker, info, loaded.tokenizer_files, metrics)
                return partial(add_TargetServiceServicer_to_server, servicer)

            return verifier, add_to

        return WorkerServer(build)

    def draft(self, **settings: Any) -> WorkerServer:
        told = {"drafter": self.drafter, "model": self.model, "head": self.head} | settings
        return self._draft(DraftSettings(**told))

    def _draft(self, settings: DraftSettings) -> WorkerServer:

        def build() -> Any:
            drafter, info = make_drafter(settings)
            proposer = Proposer(drafter, 16, info.feature_size)

            def add_to(worker: DeviceWorker[Any, Any]) -> Any:
                metrics = DraftMetrics(worker, proposer.passes, info)
                servicer = DraftServicer(worker, info, metrics)
                return partial(add_DraftServiceServicer_to_server, servicer)

            return proposer, add_to

        return WorkerServer(build)

    async def both(self, running: Cluster, **settings: Any) -> tuple[Answer, Answer]:
        """The same answer with the draft and without speculation."""
        drafted = await answer(running.generator, request(self.drafter, NUMBER, **settings))
        plain = await answer(running.generator, request("off", **settings))
        assert drafted.token_ids == plain.token_ids
        assert drafted.text == plain.text
        return drafted, plain
