"""The API is what its description at `/openapi.json` says: asked as that allows, and otherwise."""

import asyncio
import re
from collections import Counter
from typing import Any

import jsonschema
import pytest
import schemathesis
from http_service import CHAT, COMPLETIONS
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from table_service import TableService, table_service

from coordinator.http.openapi import description

MAX_TOKENS = 40

DEPENDS = {
    *("max_tokens", "min_tokens", "max_completion_tokens", "logit_bias", "stop_token_ids"),
    *("speculation.method", "stream_options", "top_logprobs", "request_id", "last-event-id"),
    *("response_format", "response_format.json_schema", "tool_choice", "ignore_eos", "best_of"),
}
DEPENDS_INSIDE = re.compile(r"messages\[\d+\]\.(content|tool_call).*|tools\[\d+\]\..+")
"""What a body may be refused for although the description allows it: the model, the service and
other parameters decide."""

Seen = Counter[tuple[str, int]]


def probe(url: str, mode: GenerationMode, num_examples: int) -> Seen:
    """Ask everything that the description names; how often each got which status."""
    seen: Seen = Counter()
    for result in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue

        @settings(
            max_examples=num_examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
                fit_the_model(case.body)
                case.headers.pop("last-event-id", None)  # nothing is on record
            response = case.call()
            seen[case.operation.label, response.status_code] += 1
            case.validate_response(response, excluded_checks=[positive_data_acceptance])
            if response.status_code == 400 and mode is GenerationMode.POSITIVE:
                param = response.json()["error"]["param"]
                assert param in DEPENDS or DEPENDS_INSIDE.fullmatch(param), response.text

        check()
    return seen


def fit_the_model(body: dict[str, Any]) -> None:
    """Most tokens and lengths that the description allows are none of the table model's."""
    if isinstance(prompt := body.get("prompt"), list):
        ids = prompt[0] if isinstance(prompt[0], list) else prompt
        if not isinstance(ids[0], str):
            body["prompt"] = [int(token_id) % 256 for token_id in ids]
    body["max_tokens"] = body["max_completion_tokens"] = MAX_TOKENS
    if "prompt" in body:
        del body["max_completion_tokens"]


async def statuses(mode: GenerationMode, num_examples: int) -> Seen:
    async with table_service() as service:
        seen = await asyncio.to_thread(probe, service.url, mode, num_examples)
        await service.running.until_free()
    return seen


@pytest.mark.parametrize(
    "num_examples",
    [40, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])],
)
async def test_what_the_description_allows_is_answered_as_it_says(num_examples: int) -> None:
    seen = await statuses(GenerationMode.POSITIVE, num_examples)
    for path in (CHAT, COMPLETIONS):
        assert seen[f"POST {path}", 200] > num_examples / 4
    assert {label for label, _ in seen} == {
        f"{method.upper()} {path}"
        for path, item in description()["paths"].items()
        for method in item.keys() & {"get", "post"}
    } - {"GET /openapi.json"}


@pytest.mark.parametrize(
    "num_examples",
    [40, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])],
)
async def test_what_the_description_does_not_allow_is_refused(num_examples: int) -> None:
    seen = await statuses(GenerationMode.NEGATIVE, num_examples)
    assert {status for _, status in seen} <= {400, 404}  # an unknown model is told before a header
    assert seen[f"POST {CHAT}", 400] > num_examples / 2


def is_as_described(value: object, name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": description()["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


async def test_calls_of_tools_are_as_described_too() -> None:
    async with table_service() as service:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
        is_as_described(await service.post(CHAT, **body), "ChatAnswer")
        for event in await service.stream(CHAT, **body):
            is_as_described(event.data, "ChatChunk")


@pytest.mark.parametrize(("path", "name"), [(CHAT, "Chat"), (COMPLETIONS, "Completion")])
async def test_events_are_as_described_too(path: str, name: str) -> None:
    async with table_service() as service:
        body: dict[str, Any] = {"max_tokens": 20, "n": 2, "return_token_ids": True}
        if path == COMPLETIONS:
            body |= {"prompt": "x", "echo": True, "logprobs": 2}
        else:
            body |= {"messages": [{"role": "user", "content": "x"}]}
            body |= {"logprobs": True, "top_logprobs": 2}
        is_as_described(await service.post(path, **body), f"{name}Answer")
        for include_usage in (False, True):
            options = {"include_usage": include_usage}
            events = await service.stream(path, stream_options=options, **body)
            for event in events:
                is_as_described(event.data, f"{name}Chunk")


def test_a_description_is_a_description() -> None:
    assert schemathesis.openapi.from_dict(description()).validate() is None


async def test_errors_are_as_described(service_with_nothing: TableService) -> None:
    client = service_with_nothing.client
    for response in [
        await client.post(CHAT, json={}),
        await client.post(CHAT, json={"model": "other", "messages": [{"role": "user"}]}),
        await client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}),
        await client.get("/v1/models/other"),
        await client.put(COMPLETIONS),
        await client.get("/nothing"),
    ]:
        assert 400 <= response.status_code < 500
        is_as_described(response.json(), "Error")


@pytest.fixture
async def service_with_nothing() -> Any:
    async with table_service(drafts=[]) as service:
        yield service
