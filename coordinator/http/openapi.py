"""What the HTTP API says of itself: an OpenAPI 3.2 description, made of the bodies' own models.

Describes what is taken as it is taken: `null` is absent whatever the parameter, and a parameter
that is not supported may have the values that ask for nothing.
"""

from typing import Any

from coordinator.http.answer_schemas import ANSWERS, OBJECT, TEXT, Schema
from coordinator.http.chat_body import ChatCompletionBody
from coordinator.http.completion_body import CompletionBody
from coordinator.http.parsing import Strict
from coordinator.http.resuming import EVENT_ID, HEADER
from coordinator.http.unsupported import NEUTRAL
from paceline import __version__

_ABSENT: Schema = {"type": "null"}


def description() -> dict[str, Any]:
    """The document served at `/openapi.json`."""
    schemas: dict[str, Schema] = dict(ANSWERS)
    for body in (ChatCompletionBody, CompletionBody):
        schemas |= _body_schemas(body)
    return {
        "openapi": "3.2.0",
        "info": {"title": "Paceline", "version": __version__},
        "paths": {
            "/v1/chat/completions": _generation("chatCompletion", ChatCompletionBody, "Chat"),
            "/v1/completions": _generation("completion", CompletionBody, "Completion"),
            "/v1/models": _get("models", {"200": _json("ModelList"), "401": _json("Error")}),
            "/v1/models/{model}": {
                "parameters": [{"name": "model", "in": "path", "required": True, "schema": TEXT}],
                **_get("model", {"200": _json("Model"), **_errors("401", "404")}),
            },
            "/health": _get("health", {"200": _json("Health")}),
            "/ready": _get("ready", {"200": _json("Readiness"), "503": _json("Readiness")}),
            "/status": _get("status", {"200": _json("Status"), "401": _json("Error")}),
            "/version": _get("version", {"200": _json("Version")}),
            "/metrics": _get("metrics", {"200": _content({"text/plain": {"schema": TEXT}})}),
            "/openapi.json": _get("openapi", {"200": _content({_JSON: {"schema": OBJECT}})}),
        },
        "components": {"schemas": schemas, "securitySchemes": _KEYS},
    }


_JSON = "application/json"
_KEYS: Schema = {
    "key": {"type": "http", "scheme": "bearer", "description": "Where the service asks for keys."}
}


def _generation(operation_id: str, body: type[Strict], answer: str) -> Schema:
    chunk = {
        "contentMediaType": _JSON,
        "contentSchema": {"anyOf": [_ref(f"{answer}Chunk"), _ref("Error")]},
    }
    event = {
        "type": "object",
        "properties": {
            "id": {**TEXT, "description": "Tokens of each choice so far, divided by commas."},
            "data": {**TEXT, "anyOf": [chunk, {"const": "[DONE]"}]},
        },
        "required": ["data"],
    }
    contents = {
        _JSON: {"schema": _ref(f"{answer}Answer")},
        "text/event-stream": {"itemSchema": event},
    }
    responses = {
        "200": _content(contents),
        "429": _json("Error", _RETRY_HEADERS),
        "503": _json("Error", _RETRY_HEADERS),
        **_errors("400", "401", "404", "413", "415", "500"),
    }
    request_body = {"required": True, "content": {_JSON: {"schema": _ref(body.__name__)}}}
    last_event = {
        "name": HEADER,
        "in": "header",
        "description": "Go on with a stream behind the event of this id.",
        "schema": {"type": "string", "pattern": EVENT_ID},
    }
    return {
        "post": {
            "operationId": operation_id,
            "parameters": [last_event],
            "requestBody": request_body,
            "responses": responses,
        }
    }


def _get(operation_id: str, responses: Schema) -> Schema:
    return {"get": {"operationId": operation_id, "responses": responses}}


def _errors(*statuses: str) -> Schema:
    return {status: _json("Error") for status in statuses}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str, headers: Schema | None = None) -> Schema:
    return _content({_JSON: {"schema": _ref(name)}}, headers)


def _content(content: Schema, headers: Schema | None = None) -> Schema:
    request_id = {"x-request-id": {"required": True, "schema": TEXT}}
    return {
        "description": "",
        "content": content,
        "headers": request_id | (headers or {}),
    }


_RETRY_HEADERS: Schema = {
    "retry-after": {"required": True, "schema": {"type": "string", "pattern": r"^\d+$"}},
    "retry-after-ms": {"required": True, "schema": {"type": "string", "pattern": r"^\d+$"}},
}


def _body_schemas(body: type[Strict]) -> dict[str, Schema]:
    """The schema of a body and those it refers to, by name."""
    schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas: dict[str, Schema] = schema.pop("$defs", {})
    schemas[body.__name__] = schema
    for found in schemas.values():
        required = found.get("required", ())
        for name, value in found.get("properties", {}).items():
            if name not in required:
                found["properties"][name] = _or_absent(value)
        if found.get("additionalProperties") is False:
            found["additionalProperties"] = _ABSENT
    for name, values in NEUTRAL.items():
        if name not in body.model_fields:
            unsupported = {"enum": [*values, None], "description": "Not supported."}
            schema["properties"][name] = unsupported
    return schemas


def _or_absent(schema: Schema) -> Schema:
    schema = {name: value for name, value in schema.items() if name not in ("title", "default")}
    return schema if _ABSENT in schema.get("anyOf", ()) else {"anyOf": [schema, _ABSENT]}
