"""What is counted of drafts adds up, whoever makes them and in whatever shape (CASES 46)."""

import asyncio
from dataclasses import replace

import pytest
from scraping import scraped
from table_requests import request
from worker_servers import LAW, answer, cluster, draft_server, target_server

NUMBER = 6
PLACE = "spec_decode_num_accepted_tokens_per_pos"


@pytest.mark.parametrize("drafter", ["trees", "hybrid", "fed", "suffix", "draft-model"])
async def test_it_adds_up(drafter: str) -> None:
    law = LAW if drafter == "fed" else replace(LAW, disagreement=0.3)
    async with cluster([target_server()], [draft_server(drafter, law)]) as running:
        await running.until_ready()
        requests = [
            request(drafter, NUMBER, max_tokens=1 + 9 * seed, temperature=seed % 2, seed=seed)
            for seed in range(8)
        ]
        # Stops inside of blocks: what is accepted behind them belongs to no answer.
        requests += [
            replace(asked, request_id=f"{asked.request_id}-stopped", stop=("e",))
            for asked in requests
        ]
        answers = await asyncio.gather(*(answer(running.generator, asked) for asked in requests))
        await running.until_free()
        found = scraped(running.metrics.instruments)
    of_drafter = f"{{drafter={drafter}}}"
    num_rounds = found[f"spec_decode_num_drafts_total{of_drafter}"]
    num_drafts = found[f"spec_decode_num_draft_tokens_total{of_drafter}"]
    num_accepted = found[f"spec_decode_num_accepted_tokens_total{of_drafter}"]
    assert 0 < num_accepted <= num_drafts <= NUMBER * num_rounds
    by_place = [
        found.get(f"{PLACE}_total{{drafter={drafter},position={place}}}", 0.0)
        for place in range(NUMBER + 1)
    ]
    assert by_place == sorted(by_place, reverse=True)
    assert (sum(by_place), by_place[0] <= num_rounds, by_place[-1]) == (num_accepted, True, 0)
    assert found["generation_tokens_total"] == sum(len(said.token_ids) for said in answers)
    # Each pass adds a token of the target's own to those that are accepted.
    assert found["target_tokens_total"] == found["target_passes_total"] + num_accepted
    for name, total in (
        ("num_draft_tokens", num_drafts),
        ("num_accepted_draft_tokens", num_accepted),
        ("num_spec_steps", num_rounds),
    ):
        assert sum(getattr(said.generation.stats, name) for said in answers) == total
