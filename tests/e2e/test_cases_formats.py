"""JSON and tools with the default model, as users of other engines met them."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import jsonschema
import openai
import pytest
from answers import OFF, Body, FrontEnd, ask, ask_all, check_equal, drafts, events, post
from cases import ask_every_way
from processes import Stack
from undisturbed import undisturbed_answer

pytestmark = pytest.mark.timeout(900)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {
            "type": "array",
            "items": {"enum": ["chess", "music", "running"]},
            "maxItems": 2,
        },
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
METHODS = ("suffix", "draft-model", "self")


def asked(words: str, **changes: Any) -> Body:
    messages = [{"role": "user", "content": words}]
    return {"messages": messages, "max_tokens": 80, "temperature": 0, "seed": 1, **changes}


@pytest.mark.parametrize("temperature", [0, 0.8])
async def test_json_meets_its_schema_whatever_is_drafted_and_however_it_is_asked(
    model_stack: Stack, temperature: float
) -> None:
    body = asked("Describe Ada.", temperature=temperature, response_format=FORMAT)
    modes = [drafts("suffix", 8), drafts("draft-model", 4)]
    front_ends = [*FrontEnd] if temperature else [FrontEnd.HTTP]
    answer = await ask_every_way(model_stack.coordinator, body, modes, front_ends)
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.text), PERSON)


async def test_drafts_of_a_model_that_knows_the_grammar_are_accepted(model_stack: Stack) -> None:
    """CASES 45: nothing is silently off."""
    body = asked("Describe Ada.", response_format=FORMAT, speculation=drafts("self", 5))
    answer = await undisturbed_answer(model_stack.coordinator, body)
    done = answer.speculation
    assert done["num_accepted_draft_tokens"] == done["num_draft_tokens"] > 10


async def test_json_free_text_and_a_client_that_leaves_share_the_batch(model_stack: Stack) -> None:
    coordinator = model_stack.coordinator
    bodies = [
        asked(words, temperature=temperature, response_format=kind, max_tokens=longest, seed=index)
        for index, (words, temperature, kind, longest) in enumerate(
            [
                ("Describe Ada.", 0, FORMAT, 60),
                ("Why is the sky blue?", 0, {"type": "text"}, 30),
                ("A JSON object with two colours.", 0.9, {"type": "json_object"}, 30),
                ("Count to ten.", 0.9, {"type": "text"}, 30),
                ("Describe Bob.", 0.9, FORMAT, 60),
            ]
        )
    ]
    alone = [await ask(coordinator, {**body, "speculation": OFF}) for body in bodies]

    async def leave() -> None:
        body = asked("Describe Eve.", response_format=FORMAT, temperature=1)
        async with aclosing(events(coordinator, body)) as stream:
            for _ in range(4):
                await anext(stream)

    mixed = [
        {**body, "speculation": drafts(METHODS[index % 3], 4)} for index, body in enumerate(bodies)
    ]
    answers, _ = await asyncio.gather(ask_all(coordinator, mixed, len(mixed)), leave())
    for answer, expected, body in zip(answers, alone, bodies, strict=True):
        check_equal(answer, expected, str(body))
        if answer.finish_reason == "stop" and body["response_format"] is FORMAT:
            jsonschema.validate(json.loads(answer.text), PERSON)


@pytest.mark.parametrize("speculation", [OFF, drafts("suffix", 4)])
@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"type": "string", "pattern": "[a-"}])
async def test_a_schema_that_is_none_is_refused_by_its_field_and_the_server_lives(
    model_stack: Stack, speculation: Body, schema: Body
) -> None:
    """CASES 23."""
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = await post(
        model_stack.coordinator, asked("Hi", response_format=bad, speculation=speculation)
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format.json_schema"
    fine = asked("Describe Ada.", response_format=FORMAT)
    jsonschema.validate(json.loads((await ask(model_stack.coordinator, fine)).text), PERSON)


async def test_a_required_call_is_made_by_a_model_that_was_never_trained_for_it(
    model_stack: Stack,
) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    weather = {"name": "get_weather", "description": "Weather of a city.", "parameters": schema}
    body: Any = asked("What is the weather in Oslo?", parallel_tool_calls=False)
    body |= {"tools": [{"type": "function", "function": weather}], "tool_choice": "required"}
    async with openai.AsyncOpenAI(
        base_url=f"{model_stack.coordinator.url}/v1", api_key="none"
    ) as client:
        calls = []
        for method in ("off", "draft-model"):
            answer = await client.chat.completions.create(
                model="SmolLM2-135M-Instruct",
                **body,
                extra_body={"speculation": {"method": method}},
            )
            assert answer.choices[0].finish_reason == "tool_calls"
            [call] = answer.choices[0].message.tool_calls or []
            calls.append(call.function)
    assert calls == [calls[0]] * len(calls)
    assert calls[0].name == "get_weather"
    jsonschema.validate(json.loads(calls[0].arguments), schema)
