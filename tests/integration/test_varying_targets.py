"""A target that says that its bits depend on the width of a pass, and what its users are told."""

from dataclasses import replace
from typing import Any

import pytest
from http_service import CHAT
from table_service import table_service
from worker_servers import INFO, target_server

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "the rain in"}],
    "max_tokens": 12,
    "ignore_eos": True,
    "seed": 9,
    "stream_options": {"include_usage": True},
}


@pytest.mark.parametrize("varies", [False, True])
async def test_answers_say_whether_a_seed_has_one_text(varies: bool) -> None:
    target = target_server(info=replace(INFO, varies_with_width=varies))
    async with table_service(targets=[target]) as service:
        whole = await service.post(CHAT, **{**BODY, "stream_options": None})
        assert whole["metrics"]["varies_with_width"] is varies
        events = await service.stream(CHAT, **BODY)
        assert events[-1].data["metrics"]["varies_with_width"] is varies
        parts = await service.generate(prompt="the rain in", max_tokens=6)
        assert {part.varies_with_width for part in parts} == {varies}
        assert {part.numerics_changed for part in parts} == {False}
        status = (await service.client.get("/status")).json()
        workers = {worker["role"]: worker["varies_with_width"] for worker in status["workers"]}
        assert workers == {"target": varies, "draft": False}


@pytest.mark.parametrize("varies", [False, True])
async def test_what_a_varying_target_may_say_otherwise_is_not_put_behind_what_the_client_has(
    varies: bool,
) -> None:
    target = target_server(info=replace(INFO, varies_with_width=varies))
    body = {**BODY, "request_id": "mine", "n": 2}
    async with table_service(targets=[target]) as service:
        events = await service.stream(CHAT, **body)
        headers = {"last-event-id": events[5].id or ""}  # of several choices nothing is on record
        again = {**body, "stream": True}
        response = await service.client.post(CHAT, json=again, headers=headers)
        assert response.is_success is not varies
        if varies:
            assert "0 of" in response.text
            assert "a target whose results depend on the width of a pass" in response.text
