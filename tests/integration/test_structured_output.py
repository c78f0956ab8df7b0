"""Answers with a format, on real workers, over every front end, while things go wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import jsonschema
import pytest
from http_service import CHAT, COMPLETIONS, text_of
from plain_text import plain_text
from real_tokenizers import table_tokenizer
from table_service import TableService, table_service
from worker_servers import GRAMMARS, LAW, answer, answer_with_accidents, draft_server, target_server

from coordinator.admission import with_rule
from coordinator.answer_grammar import answer_grammar
from coordinator.requests import GenerationRequest
from paceline.client import Client
from paceline.engine.table_model import BOS_ID, EOS_ID
from paceline.errors import InvalidRequest
from paceline.rounds import SequenceSettings
from paceline.v1 import coordinator_pb2 as pb

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,12}$"},
        "tags": {
            "type": "array",
            "items": {"enum": ["red", "blue"]},
            "minItems": 3,
            "maxItems": 4,
        },
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
PROMPT = "the rain in"
PROMPT_IDS = [BOS_ID, *PROMPT.encode()]
SAMPLED: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 400, "temperature": 1.0, "seed": 7}


@pytest.fixture
async def service() -> AsyncIterator[TableService]:
    drafts = [draft_server("self"), draft_server("suffix")]
    async with table_service(drafts=drafts) as service:
        yield service


def request(**changes: Any) -> GenerationRequest:
    fields = {"request_id": "r", "response_schema": json.dumps(SCHEMA), **SAMPLED, **changes}
    return with_rule(GenerationRequest(**fields), "coupled")


def said_alone(request: GenerationRequest) -> list[int]:
    """What the target says under the request's grammar, walked without a service."""
    settings = SequenceSettings(
        max_length=len(PROMPT_IDS) + (request.max_tokens or 0),
        temperature=request.temperature,
        seed=request.seed or 0,
        stop_token_ids=(EOS_ID,),
        prompt_length=len(PROMPT_IDS),
        min_length=len(PROMPT_IDS) + request.min_tokens,
        grammar=answer_grammar(request),
    )
    return plain_text(LAW, PROMPT_IDS, settings, GRAMMARS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["off", "self", "suffix"])
async def test_with_any_drafts_the_answer_is_what_the_target_says_under_the_grammar(
    service: TableService, temperature: float, method: str
) -> None:
    wanted = {**SAMPLED, "temperature": temperature, "response_format": FORMAT}
    speculation = {"method": method, "num_speculative_tokens": 4}
    found = await service.post(
        COMPLETIONS, **wanted, speculation=speculation, return_token_ids=True
    )
    choice = found["choices"][0]
    assert choice["token_ids"] == said_alone(request(temperature=temperature))
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["text"]), SCHEMA)


async def test_http_chat_and_grpc_streamed_and_whole_say_the_same(service: TableService) -> None:
    wanted = {**SAMPLED, "response_format": FORMAT}
    whole = text_of((await service.post(COMPLETIONS, **wanted))["choices"][0])
    events = await service.stream(COMPLETIONS, **wanted)
    assert "".join(text_of(event.data["choices"][0]) for event in events) == whole
    grpc_format = pb.ResponseFormat(json_schema=json.dumps(SCHEMA))
    parts = await service.generate(**SAMPLED, response_format=grpc_format)
    assert "".join(part.text for part in parts) == whole
    turns = [{"role": "user", "content": PROMPT}]
    del wanted["prompt"]
    chat = await service.post(CHAT, messages=turns, **wanted)
    jsonschema.validate(json.loads(text_of(chat["choices"][0])), SCHEMA)
    seen = await service.stream(CHAT, messages=turns, **wanted)
    assert "".join(text_of(event.data["choices"][0]) for event in seen) == text_of(
        chat["choices"][0]
    )


async def test_a_token_limit_in_mid_json_is_the_end_for_length(service: TableService) -> None:
    choice = (
        await service.post(COMPLETIONS, **{**SAMPLED, "max_tokens": 12}, response_format=FORMAT)
    )["choices"][0]
    assert choice["finish_reason"] == "length"
    whole = table_tokenizer().decode(said_alone(request()))
    assert choice["text"] == whole[:12]


async def test_a_minimum_of_tokens_does_not_keep_a_complete_answer_from_ending(
    service: TableService,
) -> None:
    choice = (await service.post(COMPLETIONS, **SAMPLED, response_format=FORMAT, min_tokens=390))[
        "choices"
    ][0]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["text"]), SCHEMA)


async def test_a_stop_text_ends_an_answer_wherever_it_comes(service: TableService) -> None:
    choice = (await service.post(COMPLETIONS, **SAMPLED, response_format=FORMAT, stop='"tags"'))[
        "choices"
    ][0]
    whole = table_tokenizer().decode(said_alone(request()))
    assert choice["text"] == whole[: whole.index('"tags"')]
    assert choice["finish_reason"] == "stop"


async def test_a_bias_changes_what_the_grammar_leaves_and_allows_nothing_else(
    service: TableService,
) -> None:
    bias = {str(ord("r")): -100, str(ord("x")): 100, str(ord("{")): -50}
    choice = (await service.post(COMPLETIONS, **SAMPLED, response_format=FORMAT, logit_bias=bias))[
        "choices"
    ][0]
    answer = json.loads(choice["text"])
    jsonschema.validate(answer, SCHEMA)
    assert set(answer["name"]) == {"x"} and set(answer["tags"]) == {"blue"}


@pytest.mark.parametrize("method", ["off", "self"])
@pytest.mark.parametrize(
    "schema",
    [{"type": "nonsense"}, {"type": "string", "pattern": "("}, {"$ref": "#"}, {"not": {}}],
)
async def test_a_bad_schema_is_refused_by_its_field_and_the_server_lives(
    service: TableService, method: str, schema: dict[str, Any]
) -> None:
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for path, stream in ((CHAT, False), (CHAT, True), (COMPLETIONS, True)):
        prompt = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else SAMPLED
        body = {**prompt, "response_format": bad, "speculation": {"method": method}}
        response = await service.client.post(path, json={**body, "stream": stream})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "response_format.json_schema"
    found = await service.post(
        COMPLETIONS, **SAMPLED, response_format=FORMAT, return_token_ids=True
    )
    assert found["choices"][0]["token_ids"] == said_alone(request())


async def test_where_bias_and_grammar_leave_no_token_it_is_said_and_others_go_on(
    service: TableService,
) -> None:
    banned = {str(ord("{")): -100}
    asked = [
        service.client.post(
            COMPLETIONS,
            json={**SAMPLED, "response_format": FORMAT, "logit_bias": bias, "stream": stream},
        )
        for bias in ({}, banned, {}, banned)
        for stream in (False, True)
    ]
    for index, response in enumerate(await asyncio.gather(*asked)):
        if index // 2 % 2:
            assert response.status_code == 400
            assert "the grammar ban every token" in response.json()["error"]["message"]
        else:
            assert response.status_code == 200
    await service.running.until_free()


async def test_ignoring_the_end_contradicts_a_format(service: TableService) -> None:
    response = await service.client.post(
        COMPLETIONS, json={**SAMPLED, "response_format": FORMAT, "ignore_eos": True}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "ignore_eos"


async def test_a_target_that_is_replaced_in_mid_answer_changes_nothing() -> None:
    async with table_service(targets=[target_server(), target_server()]) as service:
        running = service.running
        whole = said_alone(request())

        async def kill_the_busy_one() -> None:
            busy = max(running.targets, key=lambda server: server.load.num_sequences)
            await busy.kill()

        found = await answer_with_accidents(running, request(), kill_the_busy_one)
        assert found.token_ids == whole


async def test_a_client_that_resumes_gets_the_rest_of_the_same_json(service: TableService) -> None:
    asked = pb.GenerateRequest(
        **SAMPLED, response_format=pb.ResponseFormat(json_schema=json.dumps(SCHEMA))
    )
    text = ""
    async with (
        Client(service.grpc_address) as client,
        aclosing(client.generate(asked)) as parts,
    ):
        num_parts = 0
        async for part in parts:
            text += part.text
            num_parts += 1
            if num_parts in (2, 5):
                await service.restart_grpc()
    assert text == table_tokenizer().decode(said_alone(request()))


async def test_formats_free_text_and_a_cancelled_answer_share_the_workers() -> None:
    async with table_service(drafts=[draft_server("self")]) as service:
        generator = service.running.generator
        requests = [
            request(
                request_id=f"r{index}",
                response_schema=json.dumps(SCHEMA) if index % 2 else "",
                max_tokens=100,
                seed=index,
            )
            for index in range(8)
        ]

        async def begin_and_leave() -> None:
            generation = await generator.prepare(request(request_id="left"))
            async with aclosing(generator.stream(generation)) as steps:
                async for step in steps:
                    if step.num_committed_tokens > 8:
                        return

        *answers, _ = await asyncio.gather(
            *(answer(generator, asked) for asked in requests), begin_and_leave()
        )
        for asked, found in zip(requests, answers, strict=True):
            assert found is not None and found.token_ids == said_alone(asked)
        await service.running.until_free()


async def test_grpc_refuses_a_format_that_says_nothing(service: TableService) -> None:
    with pytest.raises(Exception, match="response_format: is set and has no json_schema"):
        await service.generate(**SAMPLED, response_format=pb.ResponseFormat())


async def test_the_targets_own_refusal_of_a_grammar_reaches_the_client(
    service: TableService,
) -> None:
    generator = service.running.generator
    generation = await generator.prepare(request(response_schema=""))
    generation.grammar = "start: nothing"
    with pytest.raises(InvalidRequest, match="grammar: cannot be used"):
        async for _ in generator.stream(generation):
            pass
