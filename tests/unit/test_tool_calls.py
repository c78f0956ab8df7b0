"""Tool calls out of text: the same whatever the pieces, right for what models write."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.json_object import JsonObject, ObjectState
from coordinator.tool_calls import ToolCallParser

PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def read(pieces: Iterable[str]) -> tuple[str, list[tuple[str, str, str]]]:
    """Content, and (id, name, arguments) of each call."""
    parser = ToolCallParser("r1")
    content = ""
    calls: list[tuple[str, str, str]] = []
    for parsed in [*map(parser.feed, pieces), parser.finish()]:
        content += parsed.content
        for delta in parsed.tool_calls:
            if delta.number == len(calls):
                assert delta.id and delta.name
                calls.append((delta.id, delta.name, delta.arguments))
            else:
                assert (delta.id, delta.name) == ("", "")
                id, name, arguments = calls[delta.number]
                calls[delta.number] = (id, name, arguments + delta.arguments)
    assert parser.num_calls == len(calls)
    return content, calls


def names_and_arguments(text: str) -> list[tuple[str, str]]:
    return [(name, arguments) for _, name, arguments in read([text])[1]]


def test_a_call_has_an_id_a_name_and_its_arguments_letter_for_letter() -> None:
    content, [(id, name, arguments)] = read([PARIS])
    assert (content, name, arguments) == ("", "weather", '{"city": "Paris"}')
    assert id.startswith("call_") and len(id) == 29


def test_ids_differ_between_calls_and_answers_and_are_repeated_by_a_resumed_answer() -> None:
    _, calls = read([PARIS + "\n" + PARIS])
    _, again = read([PARIS + "\n" + PARIS])
    other = ToolCallParser("r2").feed(PARIS).tool_calls[0].id
    assert calls == again
    assert len({calls[0][0], calls[1][0], other}) == 3


def test_text_around_calls_is_content_and_the_white_space_between_them_is_nobodys() -> None:
    content, calls = read([f"Let me look.\n\n{PARIS}\n{ROME}\nDone. "])
    assert content == "Let me look.\nDone. "
    assert [json.loads(arguments)["city"] for _, _, arguments in calls] == ["Paris", "Rome"]


def test_an_answer_without_calls_is_left_as_it_is() -> None:
    text = '  a < b <tool_cal and {"name": 1} <tool\n\n'
    assert read([text]) == (text, [])


def test_a_delta_may_end_one_call_and_begin_the_next() -> None:
    middle = len(PARIS) - 15
    content, calls = read([PARIS[:middle], PARIS[middle:] + ROME[:40], ROME[40:]])
    assert content == ""
    assert [json.loads(arguments)["city"] for _, _, arguments in calls] == ["Paris", "Rome"]


def test_name_and_arguments_come_before_the_call_is_complete() -> None:
    parser = ToolCallParser("r1")
    [first] = parser.feed('<tool_call>{"name": "f", "arguments": {"a"').tool_calls
    [second] = parser.feed(": 1").tool_calls
    assert (first.name, first.arguments) == ("f", '{"a"')
    assert (second.number, second.name, second.arguments) == (0, "", ": 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"arguments": {"a": [1, "}"]}, "name": "f"}</tool_call>', '{"a": [1, "}"]}'),
        ('<tool_call> {"name" : "f" , "arguments" : {"a":"</tool_call>"} } </tool_call>',
         '{"a":"</tool_call>"}'),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\"}"}, "id": 7}</tool_call>',
         '{"a": "\\"}"}'),
        ('<tool_call>{"id": 1, "name": "f", "arguments": {}}', "{}"),
        ('<tool_call>{"name": "f"}</tool_call>', "{}"),
        ('<tool_call>{"name": "f", "arguments": null, "arguments": {"b": 1}}</tool_call>', "null"),
    ],
)  # fmt: skip
def test_members_may_come_in_any_order_and_spacing(text: str, expected: str) -> None:
    assert names_and_arguments(text) == [("f", expected)]


def test_a_call_whose_end_mark_is_missing_ends_with_its_brace() -> None:
    without = PARIS.removesuffix("</tool_call>")
    assert len(names_and_arguments(without + ROME)) == 2
    assert read([without + "So be it."])[0] == "\nSo be it."


def test_arguments_that_the_token_limit_cuts_stay_as_far_as_they_came() -> None:
    assert names_and_arguments('<tool_call>{"name": "f", "arguments": {"a": "b') == [
        ("f", '{"a": "b')
    ]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": ',
        "<tool_call>weather(Paris)</tool_call>",
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>\n",
    ],
)
def test_what_has_no_name_is_text(text: str) -> None:
    assert read([text]) == (text, [])


def test_a_call_may_follow_what_only_began_like_one() -> None:
    content, calls = read(["<tool_call> no, " + PARIS])
    assert content == "<tool_call> no,"
    assert len(calls) == 1


def test_a_call_that_breaks_behind_its_name_keeps_its_arguments_and_spoils_nothing() -> None:
    content, calls = read(
        ['<tool_call>{"name": "f", "arguments": {"a": 1} oops}</tool_call>' + ROME]
    )
    assert content == ""
    assert [arguments for _, _, arguments in calls] == ['{"a": 1}', '{"city": "Rome"}']


_PARTS = st.sampled_from(
    [PARIS, ROME, "<tool_call>", "</tool_call>", "<tool", "_call>", "<", "text", " ", "\n", "{",
     "}", '"', "\\", ",", ":", '{"name": "f"', '"name":', '"arguments":', '{"a": 1}', "null", "[",
     "é"]
)  # fmt: skip
_TEXTS = st.lists(_PARTS, max_size=12).map("".join)


@given(_TEXTS, st.lists(st.integers(0, 400), max_size=20))
@example(f"x {PARIS}\n{ROME} y", list(range(1, 200)))
def test_pieces_cut_anywhere_give_the_same_calls_and_text(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    assert read(text[a:b] for a, b in pairwise(places)) == read([text])


@given(_TEXTS)
def test_blocks_of_every_size_give_the_same_calls_and_text(text: str) -> None:
    whole = read([text])
    for size in (1, 2, 3, 5, 9):
        assert read(text[i : i + size] for i in range(0, len(text), size)) == whole


_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _JSON), st.text(min_size=1), st.booleans())
def test_any_arguments_survive_the_way_through_text(
    arguments: dict[str, object], name: str, is_ascii: bool
) -> None:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=is_ascii)
    [(found_name, found)] = names_and_arguments(f"<tool_call>{call}</tool_call>")
    assert (found_name, json.loads(found)) == (name, arguments)


@given(st.dictionaries(st.text(), _JSON, max_size=3), st.sampled_from([None, 1]))
def test_an_object_is_read_member_by_member(members: dict[str, object], indent: int | None) -> None:
    reader, found = JsonObject(), {}
    for character in json.dumps(members, indent=indent):
        assert reader.state is ObjectState.OPEN
        reader.feed(character)
        if reader.has_value:
            found[reader.key] = json.loads(reader.value)
    assert reader.state is ObjectState.COMPLETE
    assert found == members
