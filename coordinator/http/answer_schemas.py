"""What the HTTP API answers, as JSON schemas (`coordinator.http.openapi`).

Says what a client may rely on; answers may hold more. `tests/integration/test_openapi.py` holds
answers and schemas together.
"""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": [*required]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_TOKEN_IDS = {"token_ids": _list(_COUNT), "prompt_token_ids": _list(_COUNT)}
"""With `return_token_ids`."""
_REASON: Schema = {"enum": ["stop", "length", "tool_calls"]}
_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
_BYTES: Schema = _or_null(_list({"type": "integer", "minimum": 0, "maximum": 255}))
_TOKEN = {"token": TEXT, "logprob": {"type": "number"}, "bytes": _BYTES}
_SCORED_TOKEN = _object({**_TOKEN, "top_logprobs": _list(_object(_TOKEN))})
_CHAT_LOGPROBS = _object({"content": _list(_SCORED_TOKEN), "refusal": {"type": "null"}})
_COMPLETION_LOGPROBS = _object(
    {
        "tokens": _list(TEXT),
        "token_logprobs": _list(_NUMBER_OR_NULL),
        "top_logprobs": _list({"type": ["object", "null"]}),
        "text_offset": _list(_COUNT),
    }
)

_PREDICTION = _object({"accepted_prediction_tokens": _COUNT, "rejected_prediction_tokens": _COUNT})
_USAGE = _object(
    {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
    {"completion_tokens_details": _PREDICTION},
)
_METRICS = _object(
    {"speculative_decoding": OBJECT, "numerics_changed": _FLAG, "varies_with_width": _FLAG}
)


def _choice(content: Mapping[str, Schema], reason: Schema) -> Schema:
    logprobs = _or_null(_COMPLETION_LOGPROBS if "text" in content else _CHAT_LOGPROBS)
    required = {"index": _COUNT, "logprobs": logprobs, "finish_reason": reason, **content}
    return _object(required, _TOKEN_IDS)


def _head(kind: str, choice: Schema) -> dict[str, Schema]:
    return {
        "id": TEXT,
        "object": {"enum": [kind]},
        "created": _COUNT,
        "model": TEXT,
        "system_fingerprint": _TEXT_OR_NULL,
        "choices": _list(choice),
    }


def _answer(kind: str, content: Mapping[str, Schema]) -> Schema:
    head = _head(kind, _choice(content, _REASON))
    optional = {"prompt_token_ids": _list(_COUNT)}
    return _object({**head, "usage": _USAGE, "metrics": _METRICS}, optional)


def _chunk(kind: str, content: Mapping[str, Schema]) -> Schema:
    optional = {
        "prompt_token_ids": _list(_COUNT),
        "usage": _or_null(_USAGE),
        "metrics": _METRICS,
    }
    return _object(_head(kind, _choice(content, _or_null(_REASON))), optional)


_CALL = _object(
    {
        "id": TEXT,
        "type": {"enum": ["function"]},
        "function": _object({"name": TEXT, "arguments": TEXT}),
    }
)
_CALL_DELTA = _object(
    {"index": _COUNT, "function": _object({"arguments": TEXT}, {"name": TEXT})},
    {"id": TEXT, "type": {"enum": ["function"]}},
)
_MESSAGE = _object(
    {"role": {"enum": ["assistant"]}, "content": _TEXT_OR_NULL}, {"tool_calls": _list(_CALL)}
)
_DELTA = _object(
    {}, {"role": {"enum": ["assistant"]}, "content": TEXT, "tool_calls": _list(_CALL_DELTA)}
)
_MODEL = _object({"id": TEXT, "object": {"enum": ["model"]}, "created": _COUNT, "owned_by": TEXT})
_ERROR = _object(
    {
        "message": {"type": "string", "minLength": 1},
        "type": TEXT,
        "param": _TEXT_OR_NULL,
        "code": _TEXT_OR_NULL,
    }
)

ANSWERS: dict[str, Schema] = {
    "ChatAnswer": _answer("chat.completion", {"message": _MESSAGE}),
    "ChatChunk": _chunk("chat.completion.chunk", {"delta": _DELTA}),
    "CompletionAnswer": _answer("text_completion", {"text": TEXT}),
    "CompletionChunk": _chunk("text_completion", {"text": TEXT}),
    "Error": _object({"error": _ERROR}),
    "Model": _MODEL,
    "ModelList": _object({"object": {"enum": ["list"]}, "data": _list(_MODEL)}),
    "Health": _object({"status": {"enum": ["ok"]}}),
    "Readiness": _object({"ready": _FLAG, "reason": TEXT}),
    "Version": _object({"version": TEXT, "protocol": TEXT}),
    "Status": _object(
        {
            "ready": _FLAG,
            "reason": TEXT,
            "model": TEXT,
            "workers": _list(OBJECT),
            "num_running": _COUNT,
            "stats": OBJECT,
            "session_store": TEXT,
            "num_unwritten_records": _COUNT,
            "events": OBJECT,
            "sources": _list(OBJECT),
        }
    ),
}
