"""One request by each of the three ways to ask, and what comes back in one form.

A body is what OpenAI's API takes. `ask` sends it over HTTP, over HTTP as a stream, or over gRPC,
and gives an `Answer`; two answers are equal when text, token ids, finish reason and usage are.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import httpx
import pytest
from plain_http import plain_client
from processes import Coordinator

from paceline.client import Client, GenerateRequest
from paceline.v1 import coordinator_pb2

Body = dict[str, Any]

OFF = {"method": "off"}


class Addresses(Protocol):
    """Where to ask."""

    @property
    def url(self) -> str:
        """Of the HTTP API, without `/v1`."""

    @property
    def grpc_address(self) -> str:
        """`host:port`."""


class FrontEnd(Enum):
    """How to ask."""

    HTTP = "http"
    HTTP_STREAM = "http stream"
    GRPC = "grpc"


@dataclass(frozen=True)
class Part:
    """What came at once."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    num_prompt_tokens: int
    num_completion_tokens: int
    parts: tuple[Part, ...] = field(compare=False, default=())
    speculation: dict[str, Any] = field(compare=False, default_factory=dict)
    """What drafts did, by vLLM's names."""


def drafts(method: str, number: int) -> Body:
    """The value of `speculation` for exactly so many drafts a round."""
    return {"method": method, "num_speculative_tokens": number}


async def ask(coordinator: Addresses, body: Body, front_end: FrontEnd = FrontEnd.HTTP) -> Answer:
    """Send one request and wait for all of the answer."""
    match front_end:
        case FrontEnd.HTTP:
            return await _ask_http(coordinator.url, body)
        case FrontEnd.HTTP_STREAM:
            return await _ask_http_stream(coordinator.url, body)
        case FrontEnd.GRPC:
            return await ask_grpc((coordinator.grpc_address,), body)


async def ask_all(coordinator: Addresses, bodies: Sequence[Body], concurrency: int) -> list[Answer]:
    """Send many, so many at a time."""
    slots = asyncio.Semaphore(concurrency)

    async def one(body: Body) -> Answer:
        async with slots:
            return await ask(coordinator, body)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(body)) for body in bodies]
    return [task.result() for task in tasks]


async def post(coordinator: Coordinator, body: Body) -> httpx.Response:
    """The bare response to a request that is not streamed."""
    async with http_client(coordinator.url) as client:
        return await client.post(_path(body), json=body)


async def events(coordinator: Coordinator, body: Body) -> AsyncGenerator[str, None]:
    """What a stream sends, event by event: JSON, and `[DONE]` at its end."""
    body = {**body, "stream": True}
    async with (
        http_client(coordinator.url) as client,
        client.stream("POST", _path(body), json=body) as response,
    ):
        assert response.status_code == 200, (await response.aread()).decode()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


async def ask_grpc(addresses: Sequence[str], body: Body) -> Answer:
    """Ask the first of these coordinators; go on at the next when it is lost."""
    async with (
        Client(*addresses) as client,
        aclosing(client.generate(grpc_request(body))) as stream,
    ):
        return gather([response async for response in stream])


def gather(responses: Sequence[coordinator_pb2.GenerateResponse]) -> Answer:
    """The answer out of the messages of a whole gRPC stream."""
    last = responses[-1]
    reason = coordinator_pb2.FinishReason.Name(last.finish_reason)
    answer = Answer(
        text="".join(response.text for response in responses),
        token_ids=tuple(id for response in responses for id in response.token_ids),
        finish_reason=reason.removeprefix("FINISH_REASON_").lower(),
        num_prompt_tokens=last.usage.prompt_tokens,
        num_completion_tokens=last.usage.completion_tokens,
        parts=tuple(Part(response.text, tuple(response.token_ids)) for response in responses),
        speculation={
            descriptor.name: value for descriptor, value in last.speculative_decoding.ListFields()
        },
    )
    assert last.num_committed_tokens == len(answer.token_ids)
    return answer


def grpc_request(body: Body) -> GenerateRequest:
    """The same request as a message."""
    body = dict(body)
    request = GenerateRequest()
    match body.pop("prompt", None), body.pop("messages", None):
        case str(prompt), None:
            request.prompt = prompt
        case list(token_ids), None:
            request.prompt_token_ids.token_ids.extend(token_ids)
        case None, list(messages):
            request.chat.messages.extend(coordinator_pb2.ChatMessage(**m) for m in messages)
    if "speculation" in body:
        request.speculation.CopyFrom(coordinator_pb2.Speculation(**body.pop("speculation")))
    if "response_format" in body:
        schema = body.pop("response_format")["json_schema"]["schema"]
        request.response_format.json_schema = json.dumps(schema)
    for token_id, bias in body.pop("logit_bias", {}).items():
        request.logit_bias[int(token_id)] = bias
    stop = body.pop("stop", None) or []
    request.stop.extend([stop] if isinstance(stop, str) else stop)
    request.stop_token_ids.extend(body.pop("stop_token_ids", []))
    for name, value in body.items():
        setattr(request, name, value)
    return request


def check_equal(answer: Answer, expected: Answer, what: str) -> None:
    """Fail with the first difference. On a CPU nothing excuses one (DESIGN §6)."""
    __tracebackhide__ = True
    pairs = enumerate(zip(answer.token_ids, expected.token_ids, strict=False))
    different = next((i for i, (got, wanted) in pairs if got != wanted), None)
    if different is not None:
        pytest.fail(
            f"{what}: token {different} of the answer is {answer.token_ids[different]}, "
            f"expected {expected.token_ids[different]} "
            f"({len(answer.token_ids)} and {len(expected.token_ids)} tokens)"
        )
    assert answer == expected, what


def http_client(url: str) -> httpx.AsyncClient:
    """A client that waits as long as the test may take."""
    return plain_client(url, timeout=None)


async def _ask_http(url: str, body: Body) -> Answer:
    async with http_client(url) as client:
        response = await client.post(_path(body), json={**body, "return_token_ids": True})
    assert response.status_code == 200, response.text
    answer = response.json()
    (choice,) = answer["choices"]
    return Answer(
        text=choice["text"] if "text" in choice else choice["message"]["content"],
        token_ids=tuple(choice["token_ids"]),
        finish_reason=choice["finish_reason"],
        num_prompt_tokens=answer["usage"]["prompt_tokens"],
        num_completion_tokens=answer["usage"]["completion_tokens"],
        speculation=answer["metrics"]["speculative_decoding"],
    )


async def _ask_http_stream(url: str, body: Body) -> Answer:
    body = {
        **body,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    async with (
        http_client(url) as client,
        client.stream("POST", _path(body), json=body) as response,
    ):
        assert response.status_code == 200, (await response.aread()).decode()
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]", lines[-1]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    *with_choices, usage = chunks
    choices = [chunk["choices"][0] for chunk in with_choices]
    parts = tuple(Part(_delta(choice), tuple(choice["token_ids"])) for choice in choices)
    (finish_reason,) = [c["finish_reason"] for c in choices if c["finish_reason"] is not None]
    return Answer(
        text="".join(part.text for part in parts),
        token_ids=tuple(id for part in parts for id in part.token_ids),
        finish_reason=finish_reason,
        num_prompt_tokens=usage["usage"]["prompt_tokens"],
        num_completion_tokens=usage["usage"]["completion_tokens"],
        parts=tuple(part for part in parts if part.text or part.token_ids),
        speculation=usage["metrics"]["speculative_decoding"],
    )


def _delta(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str(choice["delta"].get("content", ""))


def _path(body: Body) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"
