"""A draft that is fed with hidden states, over real gRPC."""

from table_requests import expected, request
from worker_servers import answer, cluster, draft_server, target_server


async def test_a_fed_draft_gets_its_rows_in_every_round_and_drafts_right() -> None:
    async with cluster([target_server()], [draft_server("fed")]) as running:
        await running.until_ready()
        asked = request("fed", 4)
        result = await answer(running.generator, asked)
        assert result.token_ids == expected(asked)
        stats = result.generation.stats
        assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 40


async def test_a_draft_that_is_fed_with_other_layers_is_refused_by_name() -> None:
    drafts = [draft_server("fed", feature_layers=(2, 15)), draft_server("suffix")]
    async with cluster([target_server()], drafts) as running:
        await running.until_ready(2)
        assert "layers 2, 15; the target keeps those of 0" in await running.until_refused(0)
        asked = request()
        assert (await answer(running.generator, asked)).token_ids == expected(asked)
