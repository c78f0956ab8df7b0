"""OpenAI's API over a real server: raw bytes, and OpenAI's own client."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from typing import Any

import httpx
import openai
import pytest
from real_tokenizers import smollm2_tokenizer, table_tokenizer
from scripted_generator import ScriptedGenerator, served

from coordinator.http import event_stream, wire
from coordinator.metrics import Metrics
from coordinator.tokenizer import Tokenizer
from paceline.errors import InvalidRequest, Overloaded, Unavailable

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
    id: int | None
    data: Any


def parsed(stream: bytes) -> list[Event]:
    """Server-sent events, read strictly: nothing but ids, data of one line and comments."""
    assert stream.endswith(b"\n\n")
    events = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        if block == ": keep-alive":
            continue
        found = re.fullmatch(r"(?:id: (\d+)\n)?data: ([^\n\r]+)", block)
        assert found, block
        assert len(found[2].splitlines()) == 1
        data = found[2] if found[2] == "[DONE]" else json.loads(found[2])
        events.append(Event(int(found[1]) if found[1] else None, data))
    return events


def body(path: str, **parameters: Any) -> dict[str, Any]:
    if path == CHAT:
        return {"messages": [{"role": "user", "content": "Hi 🙂"}], **parameters}
    return {"prompt": "Hi 🙂", "max_tokens": 100, **parameters}


def text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return (choice.get("message") or choice["delta"]).get("content") or ""


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    generator = ScriptedGenerator(smollm2_tokenizer(), list(rounds_of(TEXT)))
    async with (
        served(generator, Metrics()) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        yield Service(url, generator, client)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_whole_answer_has_text_usage_and_what_speculation_did(
    service: Service, path: str
) -> None:
    response = await service.post(path, model="scripted")
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    num_tokens = sum(map(len, rounds_of(TEXT)))
    num_rounds = len(rounds_of(TEXT))
    choice = answer["choices"][0]
    assert text_of(choice) == TEXT
    assert choice["finish_reason"] == "stop"
    assert answer["model"] == "scripted"
    assert answer["created"] == 1_700_000_000
    if path == CHAT:
        assert answer["object"] == "chat.completion"
        assert answer["id"].startswith("chatcmpl-")
        assert choice["message"]["role"] == "assistant"
    else:
        assert answer["object"] == "text_completion"
        assert answer["id"].startswith("cmpl-")
    usage = answer["usage"]
    assert usage["completion_tokens"] == num_tokens
    assert usage["total_tokens"] == usage["prompt_tokens"] + num_tokens
    speculation = answer["metrics"]["speculative_decoding"]
    assert speculation["num_target_passes"] == speculation["num_spec_steps"] == num_rounds
    assert speculation["tokens_per_target_pass"] == num_tokens / num_rounds
    assert sum(speculation["acceptance_histogram"]) == num_rounds
    assert speculation["num_spec_tokens"] == len(speculation["acceptance_histogram"]) - 1
    assert "token_ids" not in choice
    assert "prompt_token_ids" not in answer


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("return_token_ids", [False, True])
async def test_a_stream_says_the_same_as_the_whole_answer(
    service: Service, path: str, include_usage: bool, return_token_ids: bool
) -> None:
    whole = (await service.post(path, return_token_ids=return_token_ids)).json()
    events = await service.stream(
        path,
        stream_options={"include_usage": include_usage},
        return_token_ids=return_token_ids,
    )
    assert events.pop().data == "[DONE]"
    chunks = [event.data for event in events]
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"] == whole["usage"]
        assert last["metrics"] == whole["metrics"]
        assert all(chunk["usage"] is None and "metrics" not in chunk for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
        assert [chunk.get("metrics") for chunk in chunks] == [
            *[None] * (len(chunks) - 1),
            whole["metrics"],
        ]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(map(text_of, choices)) == text_of(whole["choices"][0]) == TEXT
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    assert {(chunk["object"], chunk["model"], chunk["created"]) for chunk in chunks} == {
        (kind, "scripted", 1_700_000_000)
    }
    assert len({chunk["id"] for chunk in chunks}) == 1
    if path == CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in choices[1:])
    ids = [event.id for event in events]
    assert ids == sorted(ids)
    assert ids[-1] == whole["usage"]["completion_tokens"]
    if return_token_ids:
        token_ids = [token_id for choice in choices for token_id in choice["token_ids"]]
        assert token_ids == whole["choices"][0]["token_ids"]
        assert token_ids == [token_id for block in rounds_of(TEXT) for token_id in block]
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
        assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
        for answer in (whole, chunks[0]) if path == COMPLETIONS else ():
            choice = answer["choices"][0]
            assert choice["prompt_token_ids"] == answer["prompt_token_ids"]


async def test_nothing_of_a_stop_string_is_streamed(service: Service) -> None:
    service.generator.script = [(33, 33, 33, 33), (33, 33, 33, 33)]
    events = await service.stream(COMPLETIONS, stop=["11111"], max_tokens=50)
    chunks = [event.data for event in events[:-1]]
    assert [text_of(chunk["choices"][0]) for chunk in chunks] == [""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert events[-2].id == 5


async def test_a_limit_inside_a_round_ends_with_length(service: Service) -> None:
    answer = (await service.post(CHAT, max_completion_tokens=4)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 4


async def test_line_ends_of_unicode_do_not_break_events(service: Service) -> None:
    tokenizer: Tokenizer = table_tokenizer()
    text = 'a\u2028b\u2029c\x85d\r\n"e\\ \x0b\x1c'
    service.generator.tokenizer = tokenizer
    service.generator.script = [(*text.encode(), 257)]
    events = await service.stream(COMPLETIONS, prompt=[1])
    assert text_of(events[0].data["choices"][0]) == text
    assert text_of((await service.post(COMPLETIONS, prompt=[1])).json()["choices"][0]) == text


async def test_openais_own_clients_read_whole_answers_and_streams(service: Service) -> None:
    options: Any = {"base_url": f"{service.url}/v1", "api_key": "none", "max_retries": 0}
    messages: Any = [{"role": "user", "content": "Hi 🙂"}]

    def blocking() -> None:
        with openai.OpenAI(**options) as client:
            assert client.models.list().data[0].id == "scripted"
            assert client.models.retrieve("scripted").owned_by == "paceline"
            answer = client.chat.completions.create(model="scripted", messages=messages)
            assert answer.choices[0].message.content == TEXT
            assert answer.usage is not None and answer.usage.completion_tokens > 0
            text = client.completions.create(model="scripted", prompt="Hi", max_tokens=50)
            assert text.choices[0].text == TEXT
            chunks = list(
                client.chat.completions.create(
                    model="scripted",
                    messages=messages,
                    n=1,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"return_token_ids": True, "speculation": {"method": "off"}},
                )
            )
            deltas = [chunk.choices[0].delta.content for chunk in chunks[:-1]]
            assert "".join(delta or "" for delta in deltas) == TEXT
            assert chunks[-1].usage == answer.usage
            assert chunks[-1].model_extra is not None
            assert chunks[-1].model_extra["metrics"]["speculative_decoding"]
            with client.chat.completions.stream(model="scripted", messages=messages) as stream:
                stream.until_done()
                final = stream.get_final_completion()
            assert final.choices[0].message.content == TEXT

    await asyncio.to_thread(blocking)
    assert service.generator.requests[-2].speculation.method == "off"

    async with openai.AsyncOpenAI(**options) as client:
        answer = await client.chat.completions.create(
            model="scripted", messages=messages, max_completion_tokens=5, temperature=0, seed=1
        )
        assert answer.choices[0].finish_reason == "length"
        stream = await client.completions.create(
            model="scripted", prompt=[1, 2], max_tokens=99, stream=True
        )
        assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT


async def test_openais_client_raises_the_fitting_error(service: Service) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    client = openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)

    async def fails(kind: type[openai.APIError], **parameters: Any) -> openai.APIError:
        with pytest.raises(kind) as error:
            stream = await client.chat.completions.create(
                **{"model": "scripted", "messages": messages, "stream": True, **parameters}
            )
            async for _ in stream:
                pass
        return error.value

    async with client:
        wrong = await fails(openai.BadRequestError, extra_body={"no_such": 1})
        assert wrong.param == "no_such"
        unknown = await fails(openai.NotFoundError, model="other")
        assert (unknown.param, unknown.code) == ("model", "model_not_found")
        service.generator.admission = Overloaded("full")
        await fails(openai.RateLimitError)
        service.generator.admission = Unavailable("none")
        await fails(openai.InternalServerError)
        service.generator.admission = None
        service.generator.script = [(33,), Unavailable("the target is gone")]
        broken = await fails(openai.APIError)
        assert broken.message == "the target is gone"


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (
            InvalidRequest("max_tokens: too many", "max_tokens"),
            400,
            {"type": "invalid_request_error", "param": "max_tokens", "code": None},
        ),
        (
            Overloaded("full", retry_after_s=1.5),
            429,
            {"type": "rate_limit_error", "param": None, "code": "overloaded"},
        ),
        (
            Unavailable("no target", retry_after_s=0.25),
            503,
            {"type": "service_unavailable", "param": None, "code": "unavailable"},
        ),
        (
            RuntimeError("a secret"),
            500,
            {"type": "server_error", "param": None, "code": "internal_error"},
        ),
    ],
)
async def test_errors_before_the_first_token_have_a_status_of_their_own(
    service: Service, error: Exception, status: int, expected: dict[str, Any]
) -> None:
    message = "internal error" if status == 500 else str(error)
    for at_admission, stream in product((True, False), (True, False)):
        service.generator.admission = error if at_admission else None
        service.generator.script = [0.01, error]
        response = await service.post(CHAT, stream=stream)
        assert response.status_code == status
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-request-id"]
        assert response.json() == {"error": {"message": message, **expected}}
        if isinstance(error, Overloaded | Unavailable):
            assert response.headers["retry-after"] == ("2" if status == 429 else "1")
            assert response.headers["retry-after-ms"] == ("1500" if status == 429 else "250")
            assert response.headers["x-should-retry"] == "true"
        else:
            assert "retry-after" not in response.headers


@pytest.mark.parametrize(
    ("error", "message"),
    [(Unavailable("the target is gone"), "the target is gone"), (KeyError("x"), "internal error")],
)
async def test_an_error_after_the_first_token_is_the_last_event(
    service: Service, error: Exception, message: str
) -> None:
    service.generator.script = [(33, 33), error]
    events = await service.stream(CHAT)
    assert [text_of(event.data["choices"][0]) for event in events[:-1]] == ["", "11"]
    assert all(event.data["choices"][0]["finish_reason"] is None for event in events[:-1])
    assert events[-1].data["error"]["message"] == message
    # The connection is still good for the next request.
    service.generator.script = list(rounds_of("fine"))
    assert (await service.post(CHAT)).status_code == 200


@pytest.mark.parametrize("stage", ["admission", "first token", "later"])
async def test_work_ends_at_once_when_the_client_leaves(service: Service, stage: str) -> None:
    generator, never = service.generator, asyncio.Event()
    for number, (path, stream) in enumerate(product((CHAT, COMPLETIONS), (False, True)), 1):
        generator.admission = never if stage == "admission" else None
        generator.script = [never] if stage == "first token" else [(33, 33), never]
        generator.waiting.clear()
        generator.closed.clear()
        asking = asyncio.create_task(service.post(path, stream=stream))
        async with asyncio.timeout(5):
            await generator.waiting.wait()
        await asyncio.sleep(0.02)
        assert not generator.closed.is_set()
        asking.cancel()
        async with asyncio.timeout(5):
            await generator.closed.wait()
        assert generator.num_streams == (0 if stage == "admission" else number)
    generator.admission, generator.script = None, list(rounds_of("fine"))
    answer = (await service.post(CHAT)).json()
    assert answer["choices"][0]["message"]["content"] == "fine"


async def test_the_work_of_a_completed_request_has_ended(service: Service) -> None:
    for stream in (False, True):
        service.generator.closed.clear()
        await service.post(CHAT, stream=stream)
        assert service.generator.closed.is_set()


async def test_a_client_that_takes_nothing_is_given_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "STALLED_S", 0.2)
    long = max(range(49152), key=lambda token_id: len(smollm2_tokenizer().token_bytes(token_id)))
    service.generator.script = [(long,) * 5000] * 2000
    host, port = service.url.removeprefix("http://").split(":")
    data = json.dumps(body(COMPLETIONS, stream=True, max_tokens=10**7)).encode()
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    with closing(writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        writer.write(b"content-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(data) + data)
        async with asyncio.timeout(20):
            await service.generator.closed.wait()
        assert not reader.at_eof()


async def test_comments_keep_a_silent_connection_alive(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.05)
    service.generator.script = [0.2, (33,), 0.2, (EOS,)]
    response = await service.post(CHAT, stream=True)
    blocks = response.text.split("\n\n")
    assert blocks[0] == ": keep-alive"
    first = next(index for index, block in enumerate(blocks) if '"content":"1"' in block)
    assert ": keep-alive" in blocks[first:]
    assert parsed(response.content)[-1].data == "[DONE]"
    # Once a comment has gone out, an error can only be an event.
    service.generator.script = [0.2, Unavailable("gone")]
    events = parsed((await service.post(CHAT, stream=True)).content)
    assert events[-1].data["error"]["message"] == "gone"


async def test_a_request_id_is_echoed_or_made_up(service: Service) -> None:
    asked = await service.client.get("/health", headers={"x-request-id": "my id/1"})
    assert asked.headers["x-request-id"] == "my id/1"
    one = (await service.client.get("/health")).headers["x-request-id"]
    two = (await service.client.get("/no-such-path")).headers["x-request-id"]
    assert one and two and one != two
    for wrong in ("x" * 129, "caf\u00e9"):
        response = await service.client.get("/health", headers={"x-request-id": wrong.encode()})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-request-id"
        assert response.headers["x-request-id"] != wrong


async def test_equal_request_ids_of_clients_do_not_meet(service: Service) -> None:
    headers = {"x-request-id": "same"}
    for _ in range(2):
        await service.client.post(CHAT, json=body(CHAT), headers=headers)
    one, two = service.generator.requests
    assert one.request_id != two.request_id


async def test_bodies_that_cannot_be_read_are_refused(service: Service) -> None:
    too_large = b'{"prompt": "' + b"x" * wire.MAX_BODY_BYTES + b'"}'
    for content, content_type, status in (
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json; charset=utf-8", 400),
        (b"{}", "text/plain", 415),
        (b"prompt=x", "application/x-www-form-urlencoded", 415),
        (b"{}", None, 415),
        (too_large, "application/json", 413),
    ):
        headers = {"content-type": content_type} if content_type else {}
        response = await service.client.post(COMPLETIONS, content=content, headers=headers)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert service.generator.requests == []


async def test_a_body_without_a_length_is_still_limited(service: Service) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(9):
            yield b"x" * (1 << 20)
        yield b'"}'

    response = await service.client.post(
        COMPLETIONS, content=pieces(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413


async def test_unknown_paths_methods_and_models_are_refused_in_the_same_shape(
    service: Service,
) -> None:
    nowhere = await service.client.get("/v1/nothing")
    assert nowhere.status_code == 404
    assert nowhere.json()["error"]["message"] == "there is no GET /v1/nothing"
    wrong_way = await service.client.get(CHAT)
    assert wrong_way.status_code == 405
    assert wrong_way.headers["allow"] == "POST"
    assert wrong_way.json()["error"]["type"] == "invalid_request_error"
    for response in (
        await service.post(CHAT, model="other"),
        await service.post(COMPLETIONS, model=""),
        await service.client.get("/v1/models/other"),
    ):
        assert response.status_code == 404
        assert response.json()["error"]["param"] == "model"
        assert response.json()["error"]["code"] == "model_not_found"
    assert service.generator.requests == []


async def test_models_with_a_slash_in_their_name_are_found(service: Service) -> None:
    service.generator.model_name = "org/model"
    assert (await service.client.get("/v1/models/org/model")).json()["id"] == "org/model"
    assert (await service.post(CHAT, model="org/model")).json()["model"] == "org/model"


async def test_without_a_target_no_model_is_listed_and_requests_say_why(service: Service) -> None:
    service.generator.model_name = ""
    service.generator.admission = Unavailable("no target worker is ready")
    assert (await service.client.get("/v1/models")).json() == {"object": "list", "data": []}
    assert (await service.client.get("/v1/models/")).status_code == 404
    assert (await service.post(CHAT, model="any")).status_code == 503


async def test_operators_and_probes_are_answered(service: Service) -> None:
    assert (await service.client.get("/health")).json() == {"status": "ok"}
    assert (await service.client.get("/ready")).json() == {"ready": True, "reason": ""}
    assert (await service.client.get("/version")).json()["protocol"] == "1.0"
    status = (await service.client.get("/status")).json()
    assert status["model"] == "scripted"
    assert status["workers"] == []
    assert status["stats"]["tokens_per_target_pass"] == 0
    service.generator.is_ready = False
    response = await service.client.get("/ready")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "reason": "no target"}
    assert (await service.client.get("/health")).status_code == 200


async def test_a_session_store_out_of_reach_is_told(service: Service) -> None:
    for store, is_degraded in (
        ("redis (unreachable: in memory for now)", True),
        ("redis", False),
        ("memory", False),
    ):
        service.generator.session_store = store
        for stream in (False, True):
            response = await service.post(CHAT, stream=stream)
            assert response.headers.get("x-paceline-session-store") == (
                "memory" if is_degraded else None
            )
        scraped = await service.client.get("/metrics")
        assert scraped.headers["content-type"].startswith("text/plain")
        assert f"paceline_session_store_degraded {float(is_degraded)}\n" in scraped.text
