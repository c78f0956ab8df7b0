"""`response_format`: what the text of an answer must look like."""

import json
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from coordinator.answer_grammar import ANY_OBJECT
from coordinator.http.parsing import Strict


class JsonSchemaBody(Strict):
    """A schema and its name."""

    name: str = ""
    """Nobody reads it here."""
    description: str = ""
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = False
    """Schemas are always met."""


class ResponseFormatBody(Strict):
    """Any text, any JSON object, or JSON that meets a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("expected json_schema where the type is json_schema, and only there")
        return self

    def to_schema(self) -> str:
        """The schema as text; empty: any text will do."""
        if self.json_schema is not None:
            return json.dumps(self.json_schema.schema_)
        return ANY_OBJECT if self.type == "json_object" else ""
