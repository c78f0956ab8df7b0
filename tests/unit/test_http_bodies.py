"""Bodies of requests: what is read, what is refused, and by which name."""

from typing import Any

import pytest
from http_bodies import HELLO, chat, completion, refusal
from pydantic import ValidationError

from coordinator.http.chat_body import ChatCompletionBody
from coordinator.http.completion_body import CompletionBody
from coordinator.http.fields import shown
from coordinator.http.parsing import parse
from coordinator.requests import ChatMessage, GenerationRequest, Speculation
from paceline.errors import InvalidRequest


def test_absent_parameters_have_their_defaults() -> None:
    messages = (ChatMessage("user", "hi"),)
    assert chat() == GenerationRequest("id", messages)
    assert completion() == GenerationRequest("id", "hi", max_tokens=16)


def test_every_supported_parameter_arrives() -> None:
    request = chat(
        n=3,
        max_tokens=7,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=-1,
        stop=["a", "b"],
        stop_token_ids=[5, 6],
        ignore_eos=True,
        logit_bias={"421": -100, "33": 1.5},
        presence_penalty=-2,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        speculation={"method": "suffix", "num_speculative_tokens": 3},
        session_id="s",
    )
    assert request == GenerationRequest(
        request_id="id",
        prompt=(ChatMessage("user", "hi"),),
        n=3,
        max_tokens=7,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=2**64 - 1,
        stop=("a", "b"),
        stop_token_ids=(5, 6),
        ignore_eos=True,
        logit_bias=((421, -100.0), (33, 1.5)),
        presence_penalty=-2.0,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        speculation=Speculation("suffix", 3),
        session_id="s",
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ("", ""), ([], ())],
)
def test_a_prompt_comes_as_text_or_ids_by_itself_or_in_a_list(prompt: Any, expected: Any) -> None:
    assert completion(prompt=prompt).prompt == expected


@pytest.mark.parametrize(
    ("stop", "expected"), [("x", ("x",)), (["x"], ("x",)), ([], ()), (None, ())]
)
def test_stop_comes_as_text_list_or_null(stop: Any, expected: Any) -> None:
    assert chat(stop=stop).stop == expected


def test_messages_come_as_text_or_text_parts_of_the_known_roles() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "system", "content": ""},
        {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None},
        {"role": "user", "content": parts},
    ]
    assert chat(messages=messages).prompt == (
        ChatMessage("system", "d"),
        ChatMessage("system", ""),
        ChatMessage("assistant", "x"),
        ChatMessage("user", "a\nb"),
    )


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("temperature", 2.5, "temperature: is 2.5; expected less than or equal to 2"),
        ("session_id", "", 'session_id: is ""; expected a text with at least 1 character'),
        ("temperature", -0.1, "expected greater than or equal to 0"),
        ("temperature", "1", 'temperature: is "1"; expected a valid number'),
        ("temperature", True, "expected a valid number"),
        ("temperature", 10**400, "expected a valid number"),
        ("top_p", 0, "expected greater than 0"),
        ("top_p", 1.1, "expected less than or equal to 1"),
        ("top_k", -2, "expected greater than or equal to -1"),
        ("top_k", 2.5, "expected a valid integer"),
        ("min_p", 2, "expected less than or equal to 1"),
        ("presence_penalty", False, "expected a valid number"),
        ("presence_penalty", 2.1, "expected less than or equal to 2"),
        ("frequency_penalty", -2.1, "expected greater than or equal to -2"),
        ("repetition_penalty", 0, "expected greater than or equal to 0.01"),
        ("seed", 2**64, "expected less than 18446744073709551616"),
        ("max_tokens", -1, "expected greater than or equal to"),
        ("min_tokens", -1, "expected greater than or equal to 0"),
        ("stop", "", "expected texts of 1 to 4096 characters"),
        ("stop", [""], "expected texts of 1 to 4096 characters"),
        ("stop", ["a"] * 5, "expected at most 4 texts"),
        ("stop", [1], "expected a text or a list of texts"),
        ("stop", ["x" * 5000], "expected texts of 1 to 4096 characters"),
        ("stop_token_ids", 5, "expected a valid list"),
        ("logit_bias", [], "expected an object from token ids to numbers"),
        ("logit_bias", {"x": 1}, 'expected token ids as keys, one is "x"'),
        ("logit_bias", {"-1": 1}, "expected token ids as keys"),
        ("logit_bias", {"²": 1}, "expected token ids as keys"),
        ("logit_bias", {"5": 101}, "expected values from -100 to 100, that of 5 is 101"),
        ("logit_bias", {"5": None}, "expected values from -100 to 100, that of 5 is null"),
        ("stream", "yes", "expected a valid boolean"),
        ("request_id", "ä", "expected a text that matches pattern '^[!-~]{1,128}$'"),
        ("speculation", "off", 'speculation: is "off"; expected an object'),
        ("stream_options", {"include_usage": True}, "only allowed together with stream: true"),
    ],
)
def test_a_bad_value_is_refused_with_what_was_expected(
    parameter: str, value: Any, message: str
) -> None:
    for endpoint in (chat, completion):
        error = refusal(endpoint, **{parameter: value})
        assert error.field == parameter
        assert message in error.message


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "tool", "tool_call_id": "x"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
            "messages[0].content",
        ),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"speculation": {"methd": "off"}}, "speculation.methd"),
        ({"prediction": {"type": "text", "content": "x"}}, "prediction.type"),
        ({"prediction": {"content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": 5}}, "prediction.content"),
        (
            {"speculation": {"num_speculative_tokens": -1}},
            "speculation.num_speculative_tokens",
        ),
        ({"stop_token_ids": [1, -2]}, "stop_token_ids[1]"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_chat_is_refused_by_the_place_that_is_wrong(
    parameters: dict[str, Any], field: str
) -> None:
    assert refusal(chat, **parameters).field == field


@pytest.mark.parametrize(
    "prompt", [["a", "b"], [[1], [2]], [["a"]], [1, "a"], [1, True], [1.5], {}, 5, None]
)
def test_several_prompts_or_none_are_refused(prompt: Any) -> None:
    assert refusal(completion, prompt=prompt).field == "prompt"


@pytest.mark.parametrize("content", ["a\nb", [{"type": "text", "text": t} for t in "ab"]])
def test_a_prediction_is_a_text_or_text_parts(content: Any) -> None:
    for endpoint in (chat, completion):
        body = {"type": "content", "content": content}
        assert endpoint(prediction=body).prediction == "a\nb"


def test_each_endpoint_asks_for_log_probabilities_in_its_own_words() -> None:
    assert chat(logprobs=True).num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).num_logprobs == 20
    assert chat(logprobs=False, top_logprobs=0).num_logprobs is None
    assert completion(logprobs=0).num_logprobs == 0
    assert completion(logprobs=20).num_logprobs == 20
    echoed = completion(logprobs=3, echo=True, max_tokens=0)
    assert (echoed.num_logprobs, echoed.prompt_logprobs, echoed.max_tokens) == (3, True, 0)
    assert not completion(logprobs=3).prompt_logprobs
    assert not completion(echo=True).prompt_logprobs


@pytest.mark.parametrize(
    ("endpoint", "parameters", "field"),
    [
        (chat, {"top_logprobs": 2}, "top_logprobs"),
        (chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (chat, {"logprobs": 2}, "logprobs"),
        (chat, {"echo": True}, "echo"),
        (chat, {"max_tokens": 0}, "max_tokens"),
        (completion, {"logprobs": 21}, "logprobs"),
        (completion, {"logprobs": True}, "logprobs"),
        (completion, {"top_logprobs": 2}, "top_logprobs"),
        (completion, {"prompt_logprobs": 2}, "prompt_logprobs"),
        (completion, {"echo": 1}, "echo"),
    ],
)
def test_log_probabilities_that_cannot_be_given_are_refused_by_name(
    endpoint: Any, parameters: dict[str, Any], field: str
) -> None:
    assert refusal(endpoint, **parameters).field == field


def test_the_two_names_of_the_token_limit_may_agree() -> None:
    assert chat(max_completion_tokens=4).max_tokens == 4
    assert chat(max_tokens=4, max_completion_tokens=4).max_tokens == 4
    assert refusal(completion, max_completion_tokens=4).field == "max_completion_tokens"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nope",
        b"[]",
        b"3",
        b'{"prompt": NaN}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="^the body is"):
        parse(CompletionBody, data)


MANY = 1000


@pytest.mark.parametrize(
    "values",
    [
        {f"nope_{index}": 1 for index in range(MANY)},
        {"speculation": {f"nope_{index}": 1 for index in range(MANY)}},
        {"messages": [{"role": "nobody", "content": 1}] * MANY},
        {"stop_token_ids": [-1] * MANY},
    ],
)
def test_a_body_that_is_wrong_all_over_is_refused_for_what_is_wrong_first(
    values: dict[str, Any],
) -> None:
    """Describing every mistake took half a minute for the largest body."""
    with pytest.raises(ValidationError) as refused:
        ChatCompletionBody.model_validate(HELLO | values)
    assert refused.value.error_count() <= 2


def test_of_a_long_value_only_what_is_shown_is_looked_at() -> None:
    assert shown(["a", {"b": None}, 1.5]) == '["a", {"b": null}, 1.5]'
    cannot_be_shown = object()
    assert shown([*range(100), cannot_be_shown]) == str([*range(100)])[:60] + "…"


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    body = b'{"prompt": [[1.0, 2]], "max_tokens": 3.0, "seed": 1e3, "stop_token_ids": [4.0]}'
    request = parse(CompletionBody, body).to_request("id")
    assert (request.prompt, request.max_tokens, request.seed) == ((1, 2), 3, 1000)
    assert request.stop_token_ids == (4,)


def test_a_number_beyond_all_floats_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="temperature: is Infinity; expected a finite number"):
        parse(CompletionBody, b'{"prompt": "x", "temperature": 1e999}')
