"""The HTTP service with written-down answers, as tests talk to it; event streams read strictly."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from plain_http import plain_client
from real_tokenizers import smollm2_tokenizer
from scripted_generator import ScriptedGenerator, served

from coordinator.metrics import Metrics

EOS = 2
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TEXT = "Naïve 🙂 answers:\n1. é́ 東京"


def rounds_of(text: str, size: int = 3) -> list[tuple[int, ...]]:
    """The ids of a text and the end of sequence, in rounds, so that characters are cut."""
    ids = (*smollm2_tokenizer().encode(text), EOS)
    return [ids[start : start + size] for start in range(0, len(ids), size)]


@dataclass
class Service:
    """A running server and what is behind it."""

    url: str
    generator: ScriptedGenerator
    client: httpx.AsyncClient

    async def post(self, path: str, **parameters: Any) -> httpx.Response:
        return await self.client.post(path, json=body(path, **parameters))

    async def stream(self, path: str, **parameters: Any) -> list["Event"]:
        response = await self.post(path, stream=True, **parameters)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        return parsed(response.content)


@dataclass
class Event:
    id: str | None
    data: Any


def parsed(stream: bytes) -> list[Event]:
    """Server-sent events, read strictly: nothing but ids, data of one line and comments."""
    assert stream.endswith(b"\n\n")
    events = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        if block == ": keep-alive":
            continue
        found = re.fullmatch(r"(?:id: (\d+(?:,\d+)*)\n)?data: ([^\n\r]+)", block)
        assert found, block
        assert len(found[2].splitlines()) == 1
        data = found[2] if found[2] == "[DONE]" else json.loads(found[2])
        events.append(Event(found[1], data))
    return events


def body(path: str, **parameters: Any) -> dict[str, Any]:
    if path == CHAT:
        return {"messages": [{"role": "user", "content": "Hi 🙂"}], **parameters}
    return {"prompt": "Hi 🙂", "max_tokens": 100, **parameters}


def text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return (choice.get("message") or choice["delta"]).get("content") or ""


@asynccontextmanager
async def scripted_service() -> AsyncIterator[Service]:
    """A service whose answer is `TEXT` until a test writes another script."""
    generator = ScriptedGenerator(smollm2_tokenizer(), list(rounds_of(TEXT)))
    async with (
        served(generator, Metrics()) as url,
        plain_client(url) as client,
    ):
        yield Service(url, generator, client)
