"""Bodies of requests as the HTTP side reads them."""

import json
from typing import Any

import pytest

from coordinator.http.chat_body import ChatCompletionBody
from coordinator.http.completion_body import CompletionBody
from coordinator.http.parsing import parse
from coordinator.requests import GenerationRequest
from paceline.errors import InvalidRequest

HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def chat(**parameters: Any) -> GenerationRequest:
    return parse(ChatCompletionBody, json.dumps(HELLO | parameters).encode()).to_request("id")


def completion(**parameters: Any) -> GenerationRequest:
    body = json.dumps({"prompt": "hi"} | parameters).encode()
    return parse(CompletionBody, body).to_request("id")


def refusal(endpoint: Any, **parameters: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        endpoint(**parameters)
    return error.value
