"""The same text over real gRPC servers, whichever method drafts and whoever dies meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from table_requests import PROMPT, expected, request
from worker_servers import LAW, Cluster, answer, cluster, draft_server, target_server

from paceline.engine.table_model import EOS_ID

METHODS = ("off", "auto", "suffix", "hybrid", "self", "draft-model")


@pytest.fixture
async def all_methods() -> AsyncIterator[Cluster]:
    """One target and a draft of each method, one of which often disagrees."""
    drafts = [
        draft_server("suffix"),
        draft_server("hybrid", replace(LAW, disagreement=0.3)),
        draft_server("self"),
        draft_server("draft-model", replace(LAW, disagreement=0.3)),
    ]
    async with cluster([target_server()], drafts) as running:
        await running.until_ready()
        yield running


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
async def test_eight_answers_at_once_are_the_table_models_own_text(
    method: str, temperature: float, all_methods: Cluster
) -> None:
    requests = [
        request(
            method,
            [None, 5][index % 2],
            prompt=PROMPT[index:],
            max_tokens=40 + index,
            temperature=temperature,
            seed=index,
        )
        for index in range(8)
    ]
    answers = await asyncio.gather(*(answer(all_methods.generator, r) for r in requests))
    for asked, said in zip(requests, answers, strict=True):
        assert said.token_ids == expected(asked)
        assert said.finish_reason == "length"
        assert said.generation.stats.num_committed_tokens == asked.max_tokens
        if method in ("self", "draft-model") and asked.speculation.num_speculative_tokens:
            assert said.generation.stats.num_spec_steps > 0
        if method == "off":
            assert said.generation.stats.num_spec_steps == 0
    await all_methods.until_free()


async def test_the_target_as_its_own_draft_accepts_everything(all_methods: Cluster) -> None:
    said = await answer(all_methods.generator, request("self", 4, temperature=1.0, max_tokens=61))
    stats = said.generation.stats
    assert stats.num_accepted_draft_tokens == stats.num_draft_tokens
    assert stats.num_target_passes == 13, "one token, then five a pass"


async def test_a_stop_inside_an_accepted_block_ends_the_answer_there(
    all_methods: Cluster,
) -> None:
    whole = await answer(all_methods.generator, request("off"))
    stop = whole.text[20:22]
    asked = replace(request("self", 7), stop=(stop,))
    said = await answer(all_methods.generator, asked)
    assert said.text == whole.text[: whole.text.index(stop)]
    assert said.finish_reason == "stop"
    assert said.token_ids == whole.token_ids[: whole.text.index(stop) + 2]
    await all_methods.until_free()


async def test_the_end_of_the_text_ends_the_answer(all_methods: Cluster) -> None:
    asked = replace(request("self", 7, max_tokens=2000, temperature=1.0), ignore_eos=False)
    said = await answer(all_methods.generator, asked)
    assert said.token_ids == expected(asked)
    assert (said.token_ids[-1], said.finish_reason) == (EOS_ID, "stop")
