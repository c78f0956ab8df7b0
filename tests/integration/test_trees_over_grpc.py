"""Trees of drafts through all three services: the text is the target's, whatever dies meanwhile."""

import asyncio
from dataclasses import replace

import pytest
from scraping import scraped
from table_requests import expected, request
from tree_drafter import TreeDrafter, by_the_law
from worker_servers import (
    LAW,
    answer,
    answer_with_accidents,
    cluster,
    draft_server,
    target_server,
)

from draft_service.proposer import Proposal

NUMBER = 9


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_many_answers_at_once_while_a_draft_dies_and_comes_back(temperature: float) -> None:
    drafts = [draft_server("trees"), draft_server("trees")]
    async with cluster([target_server()], drafts) as running:
        await running.until_ready()
        requests = [
            request("trees", NUMBER, max_tokens=80, temperature=temperature, seed=seed)
            for seed in range(6)
        ]
        accidents = [drafts[0].kill, drafts[0].start]
        answers = await asyncio.gather(
            answer_with_accidents(running, requests[0], *accidents),
            *(answer(running.generator, asked) for asked in requests[1:]),
        )
        assert [said.token_ids for said in answers] == [expected(asked) for asked in requests]
        stats = running.generator.status().stats
        assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
        assert stats.tokens_per_target_pass > 2.0
        assert len(stats.acceptance_histogram) <= NUMBER + 1
        await running.until_free()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_another_target_takes_over_in_mid_tree(temperature: float) -> None:
    targets = [target_server() for _ in range(2)]
    async with cluster(targets, [draft_server("trees")]) as running:
        await running.until_ready()

        async def kill_the_one_in_use() -> None:
            for target in targets:
                if target.load.num_sequences:
                    await target.kill()

        asked = request("trees", NUMBER, max_tokens=300, temperature=temperature)
        said = await answer_with_accidents(running, asked, kill_the_one_in_use)
        assert said.token_ids == expected(asked)


async def test_a_pool_far_too_small_preempts_and_says_the_same() -> None:
    target = target_server(num_cells=6, max_model_len=96)
    async with cluster([target], [draft_server("trees")]) as running:
        await running.until_ready()
        requests = [request("trees", 5, max_tokens=50, seed=i, temperature=1.0) for i in range(6)]
        answers = await asyncio.gather(*(answer(running.generator, r) for r in requests))
        assert [said.token_ids for said in answers] == [expected(asked) for asked in requests]
        assert target.load.num_preemptions > 0


async def test_the_number_of_drafts_may_be_left_to_the_coordinator() -> None:
    async with cluster([target_server()], [draft_server("trees")]) as running:
        await running.until_ready()
        # On a busy machine all of an answer may come too late to pay.
        for _ in range(10):
            asked = request("auto", max_tokens=200, temperature=1.0)
            said = await answer(running.generator, asked)
            assert said.token_ids == expected(asked)
            if said.generation.stats.num_draft_tokens > 0:
                return
        pytest.fail("in ten answers no draft was checked")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_prediction_stands_beside_trees(temperature: float) -> None:
    async with cluster([target_server()], [draft_server("trees")]) as running:
        await running.until_ready()
        asked = request("trees", 6, max_tokens=120, temperature=temperature)
        own = expected(asked)
        # The first half is as predicted; then nothing is, and the trees go on.
        prediction = bytes(id for id in own[:60] if id < 128).decode() + "#" * 60
        said = await answer(running.generator, replace(asked, prediction=prediction))
        assert said.token_ids == own
        generation = said.generation
        assert generation.num_accepted_prediction_tokens > 20
        num_others = generation.stats.num_accepted_draft_tokens
        assert num_others > generation.num_accepted_prediction_tokens


class Malformed(TreeDrafter):
    """Says what is no tree."""

    def extend(self, proposals: list[Proposal]) -> None:
        super().extend(proposals)
        for proposal in proposals:
            proposal.parents = [7] * len(proposal.token_ids)


async def test_what_is_no_tree_is_done_without_and_counted() -> None:
    def make() -> Malformed:
        return Malformed(by_the_law(LAW), LAW.vocab_size)

    draft = draft_server("malformed", make_drafter=make)
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        asked = request("malformed", 4)
        said = await answer(running.generator, asked)
        assert said.token_ids == expected(asked)
        assert said.generation.stats.num_draft_tokens == 0
        found = scraped(running.metrics.instruments)
        assert found["draft_failures_total{drafter=malformed,reason=malformed}"] > 0
