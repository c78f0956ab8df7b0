"""What OpenAI's and vLLM's APIs have beside ours: refused by name, or nothing is asked with it."""

import json
from typing import Any

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params

from coordinator.http.chat_body import ChatCompletionBody
from coordinator.http.completion_body import CompletionBody
from coordinator.http.parsing import parse
from coordinator.http.unsupported import NEUTRAL
from coordinator.requests import GenerationRequest
from paceline.errors import InvalidRequest

BODIES = {
    ChatCompletionBody: {"messages": [{"role": "user", "content": "hi"}]},
    CompletionBody: {"prompt": "hi"},
}
Body = type[ChatCompletionBody] | type[CompletionBody]


def request_of(body: Body, parameters: dict[str, Any]) -> GenerationRequest:
    return parse(body, json.dumps(BODIES[body] | parameters).encode()).to_request("id")


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "neutral",
    [
        *({name: value} for name, values in NEUTRAL.items() for value in (*values, None)),
        {"n": 1, "stream": False, "stream_options": None, "stop": [], "prediction": None},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"user": "me", "safety_identifier": "me", "prompt_cache_key": "mine"},
        {"top_k": -1, "stop_token_ids": [], "logit_bias": {}},
        {"speculation": {"num_speculative_tokens": None}},
        {"best_of": 1},
        {"n": None, "temperature": None, "no_such": None},
        {"prediction": {"type": "content", "content": ""}},
    ],
    ids=lambda neutral: ",".join(f"{name}={value}" for name, value in neutral.items())[:60],
)
def test_values_that_ask_for_nothing_change_nothing(body: Body, neutral: dict[str, Any]) -> None:
    if not neutral.keys() & NEUTRAL.keys() & body.model_fields.keys():
        assert request_of(body, neutral) == request_of(body, {})


OTHER_VALUES: dict[str, Any] = {
    "echo": True,
    "suffix": "x",
    "top_logprobs": 2,
    "prompt_logprobs": 1,
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "parallel_tool_calls": "x",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "reasoning_effort": "low",
    "verbosity": "high",
    "web_search_options": {},
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "priority",
    "moderation": {"model": "m"},
    "prompt_cache_options": {"ttl": "1h"},
    "prompt_cache_retention": "24h",
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "add_generation_prompt": False,
    "add_special_tokens": False,
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "cache_salt": "x",
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"a": 1},
    "continue_final_message": True,
    "detokenize": False,
    "documents": [{"text": "x"}],
    "guided_choice": ["a", "b"],
    "guided_decoding_backend": "xgrammar",
    "guided_grammar": "root ::= x",
    "guided_json": {"type": "object"},
    "guided_regex": "x+",
    "guided_whitespace_pattern": " ",
    "kv_transfer_params": {"a": 1},
    "length_penalty": 0.5,
    "logits_processors": ["x"],
    "mm_processor_kwargs": {"a": 1},
    "priority": 1,
    "prompt_embeds": "x",
    "return_tokens_as_token_ids": True,
    "spaces_between_special_tokens": False,
    "structured_outputs": {"choice": ["a"]},
    "thinking_token_budget": 5,
    "truncate_prompt_tokens": 5,
    "use_beam_search": True,
    "vllm_xargs": {"a": 1},
    "no_such_parameter": 1,
}


NAMES = sorted({*NEUTRAL, "no_such_parameter"} - {"include_reasoning"})


@pytest.mark.parametrize(
    ("body", "name"),
    [(body, name) for body in BODIES for name in NAMES if name not in body.model_fields],
)
def test_what_is_not_supported_is_refused_with_its_name_value_and_what_is(
    body: Body, name: str
) -> None:
    if name in body.model_fields:
        return  # the other endpoint lacks it
    value = OTHER_VALUES[name]
    with pytest.raises(InvalidRequest) as refusal:
        request_of(body, {name: value})
    assert refusal.value.field == name
    shown = json.dumps(value)
    assert refusal.value.message.startswith(f"{name}: is {shown}, ")
    for neutral in NEUTRAL.get(name, ()):
        assert json.dumps(neutral) in refusal.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_of", True), ("best_of", 2), ("store", 0), ("priority", False), ("use_beam_search", 0)],
)
def test_a_neutral_value_is_of_its_own_type(name: str, value: Any) -> None:
    for body in BODIES:
        with pytest.raises(InvalidRequest, match=f"{name}: is "):
            request_of(body, {name: value})


def test_as_many_choices_as_are_asked_for_may_be_the_best_ones() -> None:
    for body in BODIES:
        assert request_of(body, {"n": 3, "best_of": 3}) == request_of(body, {"n": 3})
        for best_of in (1, 2, 4):
            with pytest.raises(InvalidRequest, match=f"best_of: is {best_of}, .*expected 3"):
                request_of(body, {"n": 3, "best_of": best_of})


def test_every_parameter_that_openais_client_knows_is_known_here() -> None:
    for body, params in ((ChatCompletionBody, chat_params), (CompletionBody, text_params)):
        theirs = params.CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
        assert theirs <= body.model_fields.keys() | NEUTRAL.keys()


def test_nothing_is_both_supported_and_not_on_both_endpoints() -> None:
    both = ChatCompletionBody.model_fields.keys() & CompletionBody.model_fields.keys()
    assert not both & NEUTRAL.keys()
    assert NEUTRAL.keys() - {"include_reasoning"} <= OTHER_VALUES.keys(), "each is tried"
