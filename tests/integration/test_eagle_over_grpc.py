"""A target of transformers and a draft with an EAGLE-3 head, over real gRPC."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aligned_head import aligned_head, next_token, save_target
from eagle_heads import random_head
from table_requests import request
from tiny_models import save_checkpoint
from worker_servers import (
    Answer,
    Cluster,
    WorkerServer,
    answer,
    cluster,
    draft_server,
)

from draft_service.config import DraftSettings
from draft_service.drafters.registry import make_drafter
from draft_service.proposer import Proposer
from draft_service.servicer import DraftServicer
from paceline.engine.device_worker import DeviceWorker
from paceline.engine.grammar import Grammars
from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import Features
from paceline.engine.table_model import VOCAB_SIZE
from paceline.engine.transformer import TransformerModel
from paceline.engine.worker_model import build_worker_model
from paceline.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server
from paceline.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.__main__ import _info
from target_service.config import TargetSettings
from target_service.servicer import TargetServicer
from target_service.verifier import Verifier, VerifierLimits

FEATURE_WINDOW = 16
NUMBER = 4


class Pair:
    """A target and a head for it, on the disk."""

    def __init__(self, model: Path, head: Path) -> None:
        self.model, self.head = str(model), str(head)

    def target(
        self, changed: Callable[[TransformerModel], None] = lambda model: None
    ) -> WorkerServer:
        settings = TargetSettings(model=self.model, head=self.head, kv_cache_tokens=8192)

        def build() -> Any:
            loaded = build_worker_model(settings, None, (), settings.head)
            assert isinstance(loaded.model, TransformerModel)
            changed(loaded.model)
            limits = VerifierLimits(feature_window=FEATURE_WINDOW)
            grammars = Grammars.of_tokenizer(loaded.tokenizer_files, loaded.model.vocab_size)
            verifier = Verifier(loaded.model, limits, grammars)

            def add_to(worker: DeviceWorker[Any, Any]) -> Any:
                info = _info(loaded, verifier, settings)
                servicer = TargetServicer(worker, info, loaded.tokenizer_files)
                return partial(add_TargetServiceServicer_to_server, servicer)

            return verifier, add_to

        return WorkerServer(build)

    def draft(self) -> WorkerServer:
        settings = DraftSettings(drafter="eagle", model=self.model, head=self.head)

        def build() -> Any:
            drafter, info = make_drafter(settings)
            proposer = Proposer(drafter, 16, info.feature_size)

            def add_to(worker: DeviceWorker[Any, Any]) -> Any:
                return partial(add_DraftServiceServicer_to_server, DraftServicer(worker, info))

            return proposer, add_to

        return WorkerServer(build)


@pytest.fixture(scope="module")
def random_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("random")
    head = random_head(VOCAB_SIZE, 200, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return Pair(save_checkpoint(folder / "target"), head.write(folder / "head", "speculators"))


@pytest.fixture(scope="module")
def aligned_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("aligned")
    return Pair(save_target(folder / "target"), aligned_head().write(folder / "head"))


async def both(running: Cluster, **settings: Any) -> tuple[Answer, Answer]:
    """The same answer with the head and without speculation."""
    drafted = await answer(running.generator, request("eagle", NUMBER, **settings))
    plain = await answer(running.generator, request("off", **settings))
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text
    return drafted, plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_random_head_changes_nothing_in_the_text(
    random_pair: Pair, temperature: float
) -> None:
    async with cluster([random_pair.target()], [random_pair.draft()]) as running:
        await running.until_ready()
        for seed in range(3):
            drafted, _ = await both(running, temperature=temperature, seed=seed)
            assert drafted.generation.stats.num_draft_tokens > 20
        await running.until_free()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_features_arrive_aligned_so_that_a_head_that_knows_the_target_is_always_right(
    aligned_pair: Pair, temperature: float
) -> None:
    async with cluster([aligned_pair.target()], [aligned_pair.draft()]) as running:
        await running.until_ready()
        drafted, _ = await both(running, temperature=temperature)
        stats = drafted.generation.stats
        assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 40
        following = [next_token(token_id) for token_id in drafted.token_ids[:-1]]
        assert drafted.token_ids[1:] == following


async def test_the_same_head_is_always_wrong_with_features_that_are_off_by_one(
    aligned_pair: Pair,
) -> None:
    def shift(model: TransformerModel) -> None:
        right = model.features

        def shifted(kv: KVSequence[Any], start: int, end: int) -> Features:
            return np.roll(right(kv, 0, end), 1, axis=0)[start:end]

        model.features = shifted  # type: ignore[method-assign]

    async with cluster([aligned_pair.target(shift)], [aligned_pair.draft()]) as running:
        await running.until_ready()
        drafted, _ = await both(running)
        assert drafted.generation.stats.num_accepted_draft_tokens == 0
        assert drafted.generation.stats.num_draft_tokens > 40


@pytest.mark.parametrize("rule", ["rejection", "block"])
async def test_sampled_drafts_of_the_head_are_accepted_too(aligned_pair: Pair, rule: str) -> None:
    async with cluster([aligned_pair.target()], [aligned_pair.draft()]) as running:
        await running.until_ready()
        asked = request("eagle", NUMBER, temperature=1.0)
        asked = replace(asked, speculation=replace(asked.speculation, acceptance_rule=rule))
        drafted = await answer(running.generator, asked)
        stats = drafted.generation.stats
        assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 40


async def test_a_target_that_keeps_other_layers_is_told_by_name(
    aligned_pair: Pair, random_pair: Pair
) -> None:
    drafts = [aligned_pair.draft(), draft_server("prompt-lookup")]
    async with cluster([random_pair.target()], drafts) as running:
        await running.until_ready(2)
        assert "layers 2, 1, 0; the target keeps those of 0, 1, 2" in await running.until_refused(0)
