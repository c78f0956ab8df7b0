"""Messages of the coordinator's gRPC service as requests.

Whether the values make sense is checked at admission, as for HTTP.
"""

import secrets

from coordinator.requests import ChatMessage, GenerationRequest, Speculation
from coordinator.tools import NO_PARAMETERS, Tool, ToolCall, ToolChoice
from paceline.errors import InvalidRequest
from paceline.v1 import coordinator_pb2


def request_of(message: coordinator_pb2.GenerateRequest) -> GenerationRequest:
    """The message as a request; whether its values make sense is checked at admission."""
    wanted = message.speculation
    number = wanted.num_speculative_tokens if wanted.HasField("num_speculative_tokens") else None
    return GenerationRequest(
        request_id=message.request_id or f"gen-{secrets.token_hex(12)}",
        prompt=_prompt(message),
        n=message.n if message.HasField("n") else 1,
        prediction=message.prediction,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed if message.HasField("seed") else None,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=(
            message.repetition_penalty if message.HasField("repetition_penalty") else 1.0
        ),
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        prompt_logprobs=message.prompt_logprobs,
        speculation=Speculation(wanted.method or "auto", number, wanted.acceptance_rule),
        session_id=message.session_id,
        response_schema=_response_schema(message),
        tools=tuple(map(_tool, message.tools)),
        tool_choice=_tool_choice(message.tool_choice),
        tool_name=message.tool_name,
        parallel_tool_calls=(
            message.parallel_tool_calls if message.HasField("parallel_tool_calls") else True
        ),
    )


def _prompt(
    message: coordinator_pb2.GenerateRequest,
) -> str | tuple[int, ...] | tuple[ChatMessage, ...]:
    match message.WhichOneof("input"):
        case "prompt":
            return message.prompt
        case "prompt_token_ids":
            return tuple(message.prompt_token_ids.token_ids)
        case "chat":
            if not message.chat.messages:
                raise InvalidRequest(
                    "chat.messages: is empty; expected at least one", "chat.messages"
                )
            return tuple(map(_chat_message, message.chat.messages))
        case _:
            raise InvalidRequest(
                "input: is not set; expected prompt, prompt_token_ids or chat", "input"
            )


def _response_schema(message: coordinator_pb2.GenerateRequest) -> str:
    schema = message.response_format.json_schema
    if message.HasField("response_format") and not schema:
        raise InvalidRequest("response_format: is set and has no json_schema", "response_format")
    return schema


def _chat_message(message: coordinator_pb2.ChatMessage) -> ChatMessage:
    calls = tuple(
        ToolCall(call.id, call.name, call.arguments or "{}") for call in message.tool_calls
    )
    return ChatMessage(message.role, message.content, calls, message.tool_call_id)


def _tool(message: coordinator_pb2.Tool) -> Tool:
    parameters = message.parameters or NO_PARAMETERS
    return Tool(message.name, message.description, parameters, message.strict)


def _tool_choice(word: str) -> ToolChoice:
    try:
        return ToolChoice(word or "auto")
    except ValueError:
        raise InvalidRequest(
            f"tool_choice: is {word!r}; expected none, auto or required", "tool_choice"
        ) from None
