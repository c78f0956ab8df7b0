"""Targets of transformers and drafts with heads of every kind, over real gRPC."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aligned_head import (
    aligned_eagle1_head,
    aligned_head,
    aligned_medusa,
    next_token,
    save_target,
)
from eagle_heads import random_eagle1_head, random_head
from medusa_heads import LAYOUTS, random_medusa
from served_pair import NUMBER, Pair
from table_requests import request
from tiny_models import save_checkpoint
from worker_servers import answer, cluster

from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import Features
from paceline.engine.table_model import VOCAB_SIZE
from paceline.engine.transformer import TransformerModel


@pytest.fixture(scope="module", params=["eagle 3", "eagle 1", *LAYOUTS])
def random_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("random")
    target = save_checkpoint(folder / "target")
    if request.param in LAYOUTS:
        heads = random_medusa(VOCAB_SIZE).write(folder / "head", request.param)
        return Pair(target, heads, "medusa")
    if request.param == "eagle 1":
        return Pair(target, random_eagle1_head(VOCAB_SIZE).write(folder / "head"))
    head = random_head(VOCAB_SIZE, 200, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return Pair(target, head.write(folder / "head", "speculators"))


@pytest.fixture(scope="module", params=["eagle 3", "eagle 1", *LAYOUTS])
def aligned_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("aligned")
    target = save_target(folder / "target")
    if request.param in LAYOUTS:
        heads = aligned_medusa(request.param).write(folder / "head", request.param)
        return Pair(target, heads, "medusa")
    head = aligned_head() if request.param == "eagle 3" else aligned_eagle1_head()
    return Pair(target, head.write(folder / "head"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_random_head_changes_nothing_in_the_text(
    random_pair: Pair, temperature: float
) -> None:
    async with cluster([random_pair.target()], [random_pair.draft()]) as running:
        await running.until_ready()
        for seed in range(3 if temperature else 1):
            drafted, _ = await random_pair.both(running, temperature=temperature, seed=seed)
            assert drafted.generation.stats.num_draft_tokens > 20
        await running.until_free()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_features_arrive_aligned_so_that_a_head_that_knows_the_target_is_always_right(
    aligned_pair: Pair, temperature: float
) -> None:
    async with cluster([aligned_pair.target()], [aligned_pair.draft()]) as running:
        await running.until_ready()
        drafted, _ = await aligned_pair.both(running, temperature=temperature)
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
        drafted, _ = await aligned_pair.both(running)
        assert drafted.generation.stats.num_accepted_draft_tokens == 0
        assert drafted.generation.stats.num_draft_tokens > 40


@pytest.mark.parametrize("rule", ["rejection", "block"])
async def test_sampled_drafts_of_the_head_are_accepted_too(aligned_pair: Pair, rule: str) -> None:
    async with cluster([aligned_pair.target()], [aligned_pair.draft()]) as running:
        await running.until_ready()
        asked = request(aligned_pair.drafter, NUMBER, temperature=1.0)
        asked = replace(asked, speculation=replace(asked.speculation, acceptance_rule=rule))
        drafted = await answer(running.generator, asked)
        stats = drafted.generation.stats
        assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 40


@pytest.mark.parametrize("draft_tree", ["static", "dynamic"])
async def test_trees_of_a_random_head_change_nothing_in_the_text(
    random_pair: Pair, draft_tree: str
) -> None:
    async with cluster(
        [random_pair.target()], [random_pair.draft(draft_tree=draft_tree)]
    ) as running:
        await running.until_ready()
        for temperature in (0.0, 1.0):
            drafted, _ = await random_pair.both(running, temperature=temperature)
            assert drafted.generation.stats.num_draft_tokens > 20
        await running.until_free()


@pytest.mark.parametrize("draft_tree", ["static", "dynamic"])
async def test_the_features_of_the_path_that_was_taken_arrive_aligned(
    aligned_pair: Pair, draft_tree: str
) -> None:
    async with cluster(
        [aligned_pair.target()], [aligned_pair.draft(draft_tree=draft_tree)]
    ) as running:
        await running.until_ready()
        for temperature in (0.0, 1.0):
            drafted, _ = await aligned_pair.both(running, temperature=temperature)
            stats = drafted.generation.stats
            assert stats.num_spec_steps > 10
            assert stats.acceptance_histogram[0] == 0, "its first choice is always right"


async def test_a_draft_that_comes_back_drafts_right_from_the_next_round_on(
    aligned_pair: Pair,
) -> None:
    async with cluster([aligned_pair.target()], [aligned_pair.draft()]) as running:
        await running.until_ready()
        await aligned_pair.both(running)
        await running.drafts[0].kill()
        lost = await answer(running.generator, request("off"))
        await running.drafts[0].start()
        await running.until_ready()
        drafted, _ = await aligned_pair.both(running)
        assert drafted.token_ids == lost.token_ids
        stats = drafted.generation.stats
        assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 40
