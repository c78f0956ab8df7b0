"""A target that comes back with another head, while drafts are fed for the first."""

from dataclasses import replace
from typing import Any

from table_requests import expected, request
from worker_servers import INFO, Cluster, WorkerServer, answer, cluster, draft_server, target_server

OLD, NEW = "0ld" * 8, "new" * 8


def target(projection: str) -> WorkerServer:
    return target_server(info=replace(INFO, feature_projection=projection))


def fed(projection: str) -> WorkerServer:
    return draft_server("fed", feature_projection=projection)


async def restart_as(servers: list[WorkerServer], other: WorkerServer) -> None:
    """Another worker at the address of the first."""
    await servers[0].kill()
    other.take_address_of(servers[0])
    servers[0] = other
    await other.start()


async def said_rightly(running: Cluster) -> Any:
    asked = request("fed", 4)
    said = await answer(running.generator, asked)
    assert said.token_ids == expected(asked)
    return said.generation.stats


async def test_a_target_that_is_back_with_another_head_takes_the_drafts_of_that_one() -> None:
    async with cluster([target(OLD)], [fed(OLD)]) as running:
        await running.until_ready()
        assert (await said_rightly(running)).num_accepted_draft_tokens > 0
        await restart_as(running.targets, target(NEW))
        reason = await running.until_refused(0)
        assert f"through the matrix {OLD[:12]} of a head; the target sends them through" in reason
        assert NEW[:12] in reason
        await restart_as(running.drafts, fed(NEW))
        await running.until_ready()
        assert (await said_rightly(running)).num_accepted_draft_tokens > 0
        await running.until_free()
