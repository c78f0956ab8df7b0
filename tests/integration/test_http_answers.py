"""Answers over HTTP, whole and streamed: raw, and as OpenAI's own client reads them."""

import asyncio
from typing import Any

import openai
import pytest
from http_service import CHAT, COMPLETIONS, TEXT, Service, rounds_of, text_of
from real_tokenizers import table_tokenizer

from coordinator.tokenizer import Tokenizer


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
    assert speculation["num_spec_tokens"] == len(speculation["acceptance_histogram"]) - 1 == 3
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
    ids = [int(event.id) for event in events]
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
    assert events[-2].id == "5"


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
