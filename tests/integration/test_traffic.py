"""What goes over the wire is counted, byte by byte, where it is sent and where it is shown."""

from plain_http import plain_client
from scripted_generator import served
from table_requests import request
from worker_servers import answer, cluster, draft_server, target_server


async def test_the_messages_of_rounds_are_counted_both_ways_and_shown() -> None:
    draft = draft_server("fed", num_parameters=12)
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        said = await answer(running.generator, request("fed", 3, max_tokens=40))
        await running.until_free()
        async with (
            served(running.generator, running.metrics) as url,
            plain_client() as client,
        ):
            status = (await client.get(f"{url}/status")).json()
            scraped = (await client.get(f"{url}/metrics")).text
    target, draft_status = status["workers"]
    assert (target["num_parameters"], draft_status["num_parameters"]) == (0, 12)
    num_rounds = said.generation.stats.num_target_passes
    # Features: two numbers of two bytes for each token, from the target and on to the draft.
    num_features = 4 * len(said.generation.prompt_token_ids)
    for worker, more_sent, more_received in (
        (target, 0, num_features),
        (draft_status, num_features, 0),
    ):
        assert worker["sent_bytes"] > 32 * (num_rounds - 2) + more_sent
        assert worker["received_bytes"] > 32 * (num_rounds - 2) + more_received
        for way in ("sent", "received"):
            name = f'paceline_worker_{way}_bytes_total{{role="{worker["role"]}"}}'
            assert f"{name} {float(worker[f'{way}_bytes'])}" in scraped
    assert status["stats"]["num_proposed_tokens"] >= said.generation.stats.num_draft_tokens > 0
    assert status["stats"]["draft_compute_ms"] > 0
