"""Other requests in the same batches: sampled ones, JSON, and some whose clients leave."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from answers import Body, ask, events
from processes import Coordinator

NUM_AT_ONCE = 3
NUM_EVENTS_BEFORE_LEAVING = 4
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _chat(text: str, **settings: object) -> Body:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24, **settings}


SAMPLED = _chat("Tell me a story.", temperature=1.3, top_p=0.9)
JSON = _chat(
    "Describe a person.",
    temperature=0.9,
    response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
)
LEFT = _chat("Count to a hundred.", temperature=0.0)


@asynccontextmanager
async def company(coordinator: Coordinator) -> AsyncIterator[None]:
    """Keep a few such requests running, one after the other."""

    async def leave_early() -> None:
        async with aclosing(events(coordinator, LEFT)) as parts:
            for _ in range(NUM_EVENTS_BEFORE_LEAVING):
                await anext(parts)

    async def one_after_the_other(kinds: "itertools.cycle[str]") -> None:
        for kind in kinds:
            if kind == "left":
                await leave_early()
            else:
                await ask(coordinator, SAMPLED if kind == "sampled" else JSON)

    kinds = itertools.cycle(["sampled", "json", "left"])
    tasks = [asyncio.create_task(one_after_the_other(kinds)) for _ in range(NUM_AT_ONCE)]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
