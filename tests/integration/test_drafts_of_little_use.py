"""Drafts that cannot go on, or cost more than they bring, change no text and are left alone."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from table_requests import expected, request
from worker_servers import LAW, answer, cluster, draft_server, target_server

from paceline.engine.model import Logits, PassSequence
from paceline.engine.table_model import TableLaw, TableModel

WINDOW = 32


def short_model(law: TableLaw) -> TableModel:
    return TableModel(law, max_model_len=WINDOW)


@pytest.mark.parametrize("num_prompt", [20, 40])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_draft_with_a_short_window_stops_drafting_where_it_is_full(
    num_prompt: int, temperature: float
) -> None:
    """CASES 29."""
    prompt = ("the rain in the " * 4)[: num_prompt - 1]  # a token less than with its beginning
    drafts = [draft_server("draft-model", make_model=short_model, max_model_len=WINDOW)]
    async with cluster([target_server()], drafts) as running:
        await running.until_ready()
        asked = request(
            "draft-model", 4, prompt=prompt, max_tokens=96, temperature=temperature, seed=3
        )
        result = await answer(running.generator, asked)
        assert result.token_ids == expected(asked)
        stats = result.generation.stats
        assert stats.num_accepted_draft_tokens == stats.num_draft_tokens
        most = max(WINDOW - num_prompt + 1, 0)
        assert most / 2 <= stats.num_draft_tokens <= most


class SlowModel(TableModel):
    """Right, and later than the target could say it itself."""

    num_passes = 0

    def forward(self, batch: Sequence[PassSequence]) -> list[Logits]:
        SlowModel.num_passes += 1
        time.sleep(0.05)
        return super().forward(batch)


async def test_a_draft_that_is_slower_than_the_target_is_asked_now_and_then_only() -> None:
    """CASES 40. By themselves 400 tokens would take 400 of its passes."""
    SlowModel.num_passes = 0
    drafts = [draft_server("draft-model", make_model=SlowModel)]
    async with cluster([target_server()], drafts) as running:
        await running.until_ready()
        asked = replace(request(), max_tokens=400)
        result = await answer(running.generator, asked)
        assert result.token_ids == expected(asked)
    assert 0 < SlowModel.num_passes < 60


async def test_a_draft_that_is_never_right_is_asked_now_and_then_only() -> None:
    drafts = [draft_server("draft-model", TableLaw(LAW.seed + 1))]
    async with cluster([target_server()], drafts) as running:
        await running.until_ready()
        asked = replace(request(), max_tokens=400)
        result = await answer(running.generator, asked)
        assert result.token_ids == expected(asked)
        assert result.generation.stats.num_draft_tokens < 60
