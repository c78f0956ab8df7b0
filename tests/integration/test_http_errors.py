"""What is refused over HTTP, and how errors of every stage reach the client."""

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import openai
import pytest
from http_service import CHAT, COMPLETIONS, Service, rounds_of, text_of

from coordinator.http import wire
from paceline.errors import InvalidRequest, Overloaded, Unavailable


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
