"""Targets that take sequences of unequal length: a sequence only meets those that take it."""

from dataclasses import replace

import pytest
from session_stores import until
from table_requests import expected, request
from worker_servers import answer, answer_with_accidents, cluster, rest_of, target_server

from paceline.errors import InvalidRequest, Unavailable

SHORT, LONG = 64, 512


async def test_what_only_a_longer_target_takes_goes_and_moves_to_such_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.router.TARGET_WAIT_S", 0.2)
    targets = [target_server(max_model_len=length) for length in (SHORT, LONG, LONG)]
    async with cluster(targets[:1]) as running:
        await running.until_ready()
        with pytest.raises(InvalidRequest, match=f"up to {SHORT} tokens"):
            await running.generator.prepare(request("off", max_tokens=400))
    async with cluster(targets) as running:
        await running.until_ready()
        alive = list(targets)

        async def kill_it() -> None:
            await until(lambda: sum(target.load.num_sequences for target in alive) == 1)
            (busy,) = [target for target in alive if target.load.num_sequences]
            assert busy is not targets[0]
            alive.remove(busy)
            await busy.kill()

        asked = request("off", max_tokens=400)
        assert (await answer_with_accidents(running, asked, kill_it)).token_ids == expected(asked)
        asked = request("off", max_tokens=400)
        with pytest.raises(Unavailable, match="no target worker is ready for a sequence of 424"):
            await answer_with_accidents(running, asked, kill_it)
        # What all take still works, and what leaves its length open can be answered by all.
        asked = request("off", max_tokens=20)
        assert (await answer(running.generator, asked)).token_ids == expected(asked)
        generation = await running.generator.prepare(replace(request("off"), max_tokens=None))
        assert generation.max_tokens == SHORT - 24
        assert (await rest_of(running.generator, generation)).finish_reason == "length"


async def test_one_target_that_takes_it_is_enough_whichever_came_first() -> None:
    targets = [target_server(max_model_len=length) for length in (SHORT, LONG)]
    async with cluster(targets) as running:
        await running.until_ready()
        short, _ = running.pool.targets
        assert running.pool.model is not None
        running.pool.model = short.info
        for maximum in (30, 400):
            asked = request("off", max_tokens=maximum)
            assert (await answer(running.generator, asked)).token_ids == expected(asked)
        with pytest.raises(InvalidRequest, match=f"up to {LONG} tokens"):
            await running.generator.prepare(request("off", max_tokens=LONG))
        short.closed = "its pod is not ready"
        generation = await running.generator.prepare(replace(request("off"), max_tokens=None))
        assert generation.max_tokens == LONG - 24
