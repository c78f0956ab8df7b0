"""Answers with drafts: on a busy machine they may come late, and then the same is asked again."""

from collections.abc import Callable
from typing import Any

import pytest
from answers import Answer, Body, FrontEnd, ask
from observed import metrics
from processes import Coordinator

NUM_TRIES = 10
FAILURES = "draft_failures_total"


async def undisturbed_answer(
    coordinator: Coordinator, request: Body, front_end: FrontEnd = FrontEnd.HTTP
) -> Answer:
    """The first one for which no draft failed."""
    for _ in range(NUM_TRIES):
        before = await metrics(coordinator)
        answer = await ask(coordinator, request, front_end)
        after = await metrics(coordinator)
        if before.get(FAILURES) == after.get(FAILURES):
            return answer
    pytest.fail(f"in {NUM_TRIES} tries drafts always failed")


def drafted_answer(ask: Callable[[], dict[str, Any]], more_than: int = 0) -> dict[str, Any]:
    """The first one with so many drafts accepted, as a command or the HTTP API tells it."""
    for _ in range(NUM_TRIES):
        answer = ask()
        stats = answer.get("metrics", answer)["speculative_decoding"]
        if stats["num_accepted_draft_tokens"] > more_than:
            return answer
    pytest.fail(f"in {NUM_TRIES} tries no more than {more_than} drafts were accepted: {stats}")
