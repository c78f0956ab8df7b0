"""The bodies that clients send, read strictly.

Knows nothing about HTTP or tokens. Invariant: nothing that a client says is ignored. A parameter is
used, or holds the value that asks for nothing, or is refused by its name; `null` means absent.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, from_json

from coordinator.http.fields import content_text, logit_biases, prompt_input, shown, stop_texts
from coordinator.requests import ChatMessage, GenerationRequest, Speculation
from paceline.errors import InvalidRequest

_DEFAULT_COMPLETION_TOKENS = 16
"""As OpenAI has it for `/v1/completions`; a chat goes on until it ends."""

# Parameters of OpenAI and vLLM that are not supported, each with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
}


class _Strict(BaseModel):
    """An object without unknown keys, whose values are of the right type as they stand."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


class StreamOptions(_Strict):
    """What a stream holds besides the answer."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class SpeculationBody(_Strict):
    """How to speculate; never changes the text."""

    method: Annotated[str, Field(min_length=1)] = "auto"
    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)] | None = None


class MessageBody(_Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(content_text)]

    def to_message(self) -> ChatMessage:
        """`developer` is OpenAI's newer word for `system`."""
        role = "system" if self.role == "developer" else self.role
        return ChatMessage(role, self.content)


class _GenerationBody(_Strict):
    """What chats and completions have in common."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(stop_texts)] = ()
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**32)]] = []
    ignore_eos: bool = False
    logit_bias: Annotated[tuple[tuple[int, float], ...], BeforeValidator(logit_biases)] = ()
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    speculation: SpeculationBody = SpeculationBody()
    session_id: Annotated[str, Field(min_length=1, max_length=256)] = ""
    user: str | None = None
    """Who is asking, for the client's own books: it asks for nothing."""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def _to_request(
        self,
        request_id: str,
        prompt: str | tuple[int, ...] | tuple[ChatMessage, ...],
        max_tokens: int | None,
    ) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options: only allowed together with stream: true", "stream_options"
            )
        return GenerationRequest(
            request_id=request_id,
            prompt=prompt,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            seed=None if self.seed is None else self.seed % 2**64,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logit_bias=self.logit_bias,
            speculation=Speculation(
                self.speculation.method, self.speculation.num_speculative_tokens
            ),
            session_id=self.session_id,
        )


class ChatCompletionBody(_GenerationBody):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[MessageBody], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    def to_request(self, request_id: str) -> GenerationRequest:
        """Raises InvalidRequest when parameters contradict each other."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise InvalidRequest(
                f"max_completion_tokens: is {self.max_completion_tokens} but max_tokens, its older "
                f"name, is {self.max_tokens}; expected one of them",
                "max_completion_tokens",
            )
        messages = tuple(message.to_message() for message in self.messages)
        return self._to_request(request_id, messages, limits.pop() if limits else None)


class CompletionBody(_GenerationBody):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[str | tuple[int, ...], BeforeValidator(prompt_input)]

    def to_request(self, request_id: str) -> GenerationRequest:
        """Raises InvalidRequest when parameters contradict each other."""
        limit = _DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        return self._to_request(request_id, self.prompt, limit)


_A_MODEL = re.compile(r"a valid dictionary or instance of \w+")

_Body = TypeVar("_Body", bound=BaseModel)


def parse(body_type: type[_Body], data: bytes) -> _Body:
    """A body out of JSON.

    Raises:
        InvalidRequest: says what is wrong, and in which parameter.
    """
    try:
        values = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"the body is {shown(values)}; expected a JSON object")
    supported = {
        name: value
        for name, value in values.items()
        if name in body_type.model_fields or not _asks_for_nothing(name, value)
    }
    try:
        return body_type.model_validate(supported)
    except ValidationError as error:
        raise _as_invalid_request(error.errors(include_url=False)[0]) from None


def _asks_for_nothing(name: str, value: object) -> bool:
    """Whether a parameter that is not supported can be left out. Refuses it when it cannot."""
    if name not in _NEUTRAL:
        return False
    neutral = _NEUTRAL[name]
    # In Python, 1 == True.
    equal = [v for v in neutral if v == value and isinstance(v, bool) == isinstance(value, bool)]
    if value is None or equal:
        return True
    expected = " or ".join([*map(shown, neutral), "nothing"])
    raise InvalidRequest(
        f"{name}: is {shown(value)}, which is not supported; expected {expected}", name
    )


def _as_invalid_request(error: ErrorDetails) -> InvalidRequest:
    param = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]
    ).removeprefix(".")
    match error["type"]:
        case "extra_forbidden":
            message = f"{param}: is not a parameter of this API"
        case "missing":
            message = f"{param}: is missing"
        case _:
            expected = error["msg"].removeprefix("Value error, ")
            expected = expected.replace("Input should be", "expected")
            expected = _A_MODEL.sub("an object", expected)
            message = f"{param}: is {shown(error['input'])}; {expected}"
    return InvalidRequest(message, param)
