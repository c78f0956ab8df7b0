"""Workers and coordinators of other versions: another major is refused, other minors work."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from table_requests import expected, request
from waiting import SOON_S
from worker_servers import INFO, answer, cluster, draft_server, target_server

from paceline.rounds import PROTOCOL_MAJOR, PROTOCOL_MINOR

UNKNOWN_FIELD = b"\xc0\xbb\x01\x07"
"""Field 3000, a number."""
OF_THE_WORKER = (
    "target_service.servicer.info_to_wire",
    "target_service.servicer.load_to_wire",
    "target_service.servicer.verify_result_to_wire",
    "draft_service.servicer.info_to_wire",
    "draft_service.servicer.load_to_wire",
    "draft_service.servicer.propose_result_to_wire",
)
OF_THE_COORDINATOR = (
    "paceline.workers.connections.verify_round_to_wire",
    "paceline.workers.connections.propose_round_to_wire",
)


def with_unknown_fields(message: Any) -> Any:
    """As a newer peer sends it, nested messages too."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "append") else [value]:
                part.MergeFromString(UNKNOWN_FIELD)
    message.MergeFromString(UNKNOWN_FIELD)
    return message


def without_newer_fields(message: Any) -> Any:
    """As a peer of the first minor version sends it."""
    for name in ("started_at_ms", "draining", "protocol_minor"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    return message


@pytest.mark.parametrize("functions", [OF_THE_WORKER, OF_THE_COORDINATOR])
@pytest.mark.parametrize("change", [with_unknown_fields, without_newer_fields])
async def test_older_and_newer_peers_make_the_same_text(
    monkeypatch: pytest.MonkeyPatch, functions: tuple[str, ...], change: Callable[[Any], Any]
) -> None:
    for name in functions:
        module, _, function = name.rpartition(".")
        original = getattr(__import__(module, fromlist=[function]), function)
        monkeypatch.setattr(name, lambda item, to_wire=original: change(to_wire(item)))
    async with cluster([target_server()], [draft_server("self")]) as running:
        await running.until_ready()
        for temperature in (0.0, 1.0):
            asked = request("self", 4, temperature=temperature)
            said = await answer(running.generator, asked)
            assert said.token_ids == expected(asked)
            assert said.generation.stats.num_accepted_draft_tokens > 0


async def test_a_newer_minor_works_and_another_major_is_refused_by_name() -> None:
    newer = replace(INFO, protocol_minor=PROTOCOL_MINOR + 5)
    other = replace(newer, protocol_major=PROTOCOL_MAJOR + 1, version="9.0")
    async with cluster([target_server(info=newer), target_server(info=other)]) as running:
        await running.until_ready(1)
        asked = request("off")
        assert (await answer(running.generator, asked)).token_ids == expected(asked)
        refused = running.pool.targets[1]
        async with asyncio.timeout(SOON_S):
            while refused.info is None:
                await running.pool.until_changed()
        assert not refused.is_ready
        assert refused.reason == (
            f"protocol_major is {PROTOCOL_MAJOR + 1}; expected {PROTOCOL_MAJOR} "
            "(the worker runs version 9.0)"
        )
