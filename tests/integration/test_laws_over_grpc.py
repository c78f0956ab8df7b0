"""The joint law of answers through real gRPC services is the table's, also while drafts die."""

import asyncio
from dataclasses import replace

import pytest
from joint_laws import Answer, is_plausible, joint_law
from table_requests import request
from worker_servers import LAW, Cluster, answer, cluster, draft_server, target_server

from coordinator.requests import Speculation
from paceline.engine.table_model import BOS_ID
from paceline.rounds import SequenceSettings

PROMPT = "the rain"
NUM_ANSWERS = 1200
NUM_TOGETHER = 24
TOP_K = 3
MAX_TOKENS = 4


async def answers(running: Cluster, rule: str) -> list[Answer]:
    seeds = iter(range(NUM_ANSWERS))

    async def client() -> list[Answer]:
        said = []
        for seed in seeds:
            asked = replace(
                request(prompt=PROMPT, max_tokens=MAX_TOKENS, temperature=1.5, seed=seed),
                top_k=TOP_K,
                speculation=Speculation("draft-model", 3, rule),
            )
            said.append(tuple((await answer(running.generator, asked)).token_ids))
        return said

    lists = await asyncio.gather(*(client() for _ in range(NUM_TOGETHER)))
    return [said for part in lists for said in part]


async def kill_and_restart(running: Cluster, until: asyncio.Event) -> None:
    """Every draft in turn, over and over."""
    while not until.is_set():
        for server in running.drafts:
            await server.kill()
            await asyncio.sleep(0.1)
            await server.start()
            await asyncio.sleep(0.3)


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
async def test_the_joint_law_of_answers_is_the_tables(rule: str) -> None:
    prompt = [BOS_ID, *PROMPT.encode()]
    settings = SequenceSettings(
        max_length=len(prompt) + MAX_TOKENS, temperature=1.5, top_k=TOP_K, prompt_length=len(prompt)
    )
    law = replace(LAW, disagreement=0.4)
    async with cluster(
        [target_server()], [draft_server("draft-model", law), draft_server("draft-model", law)]
    ) as running:
        await running.until_ready()
        is_over = asyncio.Event()
        accidents = asyncio.create_task(kill_and_restart(running, is_over))
        said = await answers(running, rule)
        is_over.set()
        await accidents
        stats = running.generator.status().stats
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
    assert len(said) == NUM_ANSWERS
    assert is_plausible(said, joint_law(LAW, prompt, settings))
