"""Whatever the schema, what its grammar lets through is JSON that meets it.

Schemas are drawn; texts are walked at random through what the grammar allows, byte by byte, by a
speaker that knows nothing of JSON. An independent validator has the last word.
"""

import json
from typing import Any

import jsonschema
import numpy as np
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from coordinator.answer_grammar import answer_grammar
from coordinator.requests import GenerationRequest
from paceline.errors import InvalidRequest

MAX_BYTES = 400
BYTES = LLTokenizer("byte")
ENDERS = np.isin(np.arange(256), list(b'"}],'))
"""Bytes that a speaker prefers who wants to come to an end."""


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def typed(name: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return some(**fields).map(lambda found: {"type": name, **found})


NUMBERS = {
    "minimum": st.integers(-50, 20),
    "maximum": st.integers(21, 200),
    "exclusiveMinimum": st.sampled_from([-3.5, 0, 7]),
    "multipleOf": st.sampled_from([2, 5, 0.5]),
}
PATTERNS = ["a", "^a", "b$", "^[0-9]{2,4}$", "^(foo|bar)+$", r"\d+", "^.$", r"^\w*$", "[^a]"]
VALUES = st.sampled_from([1, "a", None, True, [1], {"x": 2}, 'é"\\', 1.5, "", "a\n", -0.5])
KEYS = ["a", "b", "c d", "é"]
SIMPLE = st.one_of(
    typed(
        "string",
        minLength=st.integers(0, 3),
        maxLength=st.integers(4, 8),
        pattern=st.sampled_from(PATTERNS),
        format=st.sampled_from(["date", "uuid", "ipv4"]),
    ),
    typed("integer", **NUMBERS),
    typed("number", **NUMBERS),
    st.sampled_from([{"type": "boolean"}, {"type": ["null", "integer"]}, {}, True]),
    st.just({"$ref": "#/$defs/x"}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
)


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        typed(
            "object",
            properties=st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
            required=st.lists(st.sampled_from([*KEYS, "zz"]), unique=True, max_size=3),
            additionalProperties=st.one_of(st.just(False), inner),
            patternProperties=st.dictionaries(st.sampled_from(["^x", "y$"]), inner, max_size=1),
            minProperties=st.integers(0, 2),
            maxProperties=st.integers(2, 4),
        ),
        typed(
            "array",
            items=inner,
            prefixItems=st.lists(inner, min_size=1, max_size=2),
            minItems=st.integers(0, 2),
            maxItems=st.integers(2, 4),
        ),
        st.lists(inner, min_size=2, max_size=2).map(lambda found: {"anyOf": found}),
        st.lists(inner, min_size=2, max_size=2).map(lambda found: {"oneOf": found}),
        st.lists(inner, min_size=2, max_size=2).map(lambda found: {"allOf": found}),
    )


SCHEMAS = st.builds(
    lambda schema, shared: {**(schema if isinstance(schema, dict) else {}), "$defs": {"x": shared}},
    st.recursive(SIMPLE, compound, max_leaves=5),
    st.sampled_from([{"type": "integer", "maximum": 9}, {"enum": ["p", "q"]}]),
)


def spoken(grammar: str, speaker: np.random.Generator) -> str | None:
    """A text that the grammar lets through, to its end; None when it takes too long."""
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    text = bytearray()
    while len(text) < MAX_BYTES:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert not matcher.is_error()
        allowed = bits[:256].astype(bool)
        if matcher.is_accepting() and (not allowed.any() or speaker.random() < 0.3):
            return text.decode()
        assert allowed.any(), "a dead end"
        ending = allowed & ENDERS
        wanted = ending if ending.any() and speaker.random() < 0.4 else allowed
        byte = int(speaker.choice(np.flatnonzero(wanted)))
        assert matcher.consume_token(byte)
        text.append(byte)
    return None


@given(SCHEMAS, st.integers(0, 2**32))
@examples(max_examples=150)
def test_what_a_grammar_lets_through_meets_its_schema(schema: dict[str, Any], seed: int) -> None:
    request = GenerationRequest("r", "", response_schema=json.dumps(schema))
    try:
        grammar = answer_grammar(request)
    except InvalidRequest:
        return  # not supported, or nothing meets it: said before the first token
    speaker = np.random.default_rng(seed)
    for _ in range(3):
        text = spoken(grammar, speaker)
        if text is not None:
            value = json.loads(text)
            jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.FormatChecker()
            ).validate(value)
