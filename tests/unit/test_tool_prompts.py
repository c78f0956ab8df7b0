"""Tools, calls and results in prompts: by a template that shows them, and by one that cannot."""

import json
from typing import Any

import pytest
import tokenizers
from real_tokenizers import smollm2_tokenizer
from tokenizers import AddedToken, decoders, models
from transformers.utils.chat_template_utils import render_jinja_template

from coordinator.chat_template import ChatTemplate
from coordinator.requests import ChatMessage
from coordinator.tool_calls import ToolCallParser
from coordinator.tools import NO_PARAMETERS, Tool, ToolCall
from paceline.errors import InvalidRequest
from paceline.token_bytes import read_token_bytes

SHOWING = """{%- if tools %}<|system|>
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Answer with <tool_call>{"name": …, "arguments": …}</tool_call>
{%- endif %}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{%- if message.tool_call_id %}({{ message.tool_call_id }}){% endif %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
BLIND = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"

WEATHER = Tool("weather", "Tells the weather.", '{"type": "object", "properties": {"é": {}}}')
NOW = Tool("now", "", NO_PARAMETERS)
CONVERSATION = [
    ChatMessage("system", "Be brief."),
    ChatMessage("user", "Weather?"),
    ChatMessage(
        "assistant",
        "",
        (ToolCall("c1", "weather", '{"city": "Paris"}'), ToolCall("c2", "now", "{}")),
    ),
    ChatMessage("tool", "sunny", tool_call_id="c1"),
    ChatMessage("tool", "noon", tool_call_id="c2"),
]


def as_transformers_has_it(message: ChatMessage) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    return turn


@pytest.mark.parametrize("tools", [(), (WEATHER,), (WEATHER, NOW)])
def test_a_template_that_shows_tools_gives_the_prompt_of_transformers(
    tools: tuple[Tool, ...],
) -> None:
    definitions = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "parameters": json.loads(tool.parameters),
            },
        }
        for tool in tools
    ]
    turns = [as_transformers_has_it(message) for message in CONVERSATION]
    [expected], _ = render_jinja_template(
        [turns], tools=definitions or None, chat_template=SHOWING, add_generation_prompt=True
    )
    assert ChatTemplate(SHOWING, {}).render(CONVERSATION, tools) == expected


def test_without_such_a_template_tools_calls_and_results_become_text() -> None:
    prompt = ChatTemplate(BLIND, {}).render(CONVERSATION, [WEATHER, NOW])
    system, user, assistant, results, end = prompt.split("<|")[1:]
    assert system.startswith("system|>Be brief.\n\n")
    assert '"name": "weather", "description": "Tells the weather."' in system and "é" in system
    assert user == "user|>Weather?"
    assert results == (
        "user|><tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    )
    assert end == "assistant|>"
    parsed = ToolCallParser("r").feed(assistant)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
        ("weather", '{"city": "Paris"}'),
        ("now", "{}"),
    ]


def test_tools_get_a_system_turn_of_their_own_where_there_is_none() -> None:
    prompt = ChatTemplate(BLIND, {}).render(CONVERSATION[1:2], [NOW])
    assert prompt.startswith("<|system|>You may call functions")
    assert prompt.endswith("<|user|>Weather?<|assistant|>")


def test_what_the_assistant_said_beside_its_calls_stays() -> None:
    message = ChatMessage("assistant", "Let me see.", CONVERSATION[2].tool_calls[1:])
    prompt = ChatTemplate(BLIND, {}).render([CONVERSATION[1], message])
    assert "<|assistant|>Let me see.\n<tool_call>\n" in prompt


@pytest.mark.parametrize(
    "other",
    ["{% if tools %}[TOOL_CALLS]{% endif %}", "{{ tools }}<tool_call><function=f></tool_call>"],
)
def test_a_template_with_another_format_of_calls_is_refused_for_tools_only(other: str) -> None:
    template = ChatTemplate(other + BLIND, {})
    template.render(CONVERSATION[:2])
    with pytest.raises(InvalidRequest, match="^tools: .*not supported") as caught:
        template.render(CONVERSATION[:2], [NOW])
    assert caught.value.field == "tools"


def test_the_default_models_prompt_holds_the_tools() -> None:
    ids = smollm2_tokenizer().encode_chat(CONVERSATION[:2], tools=[WEATHER])
    text = smollm2_tokenizer().decode(ids)
    assert "Be brief." in text and '"name": "weather"' in text
    assert len(ids) > len(smollm2_tokenizer().encode_chat(CONVERSATION[:2]))


def test_calls_that_a_template_cannot_take_are_refused() -> None:
    broken = ChatMessage("assistant", "", (ToolCall("c1", "f", "no json"),))
    with pytest.raises(InvalidRequest, match="refused by the chat template"):
        ChatTemplate(SHOWING, {}).render([broken])


@pytest.mark.parametrize("is_special", [False, True])
def test_the_marks_of_a_call_are_text_even_where_they_are_special_tokens(is_special: bool) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    marks = [AddedToken(mark, special=is_special) for mark in ("<tool_call>", "</tool_call>")]
    backend.add_tokens(marks)
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    found = read_token_bytes(backend.to_str().encode(), backend)
    assert found == [b"a", b"b", b"<tool_call>", b"</tool_call>", b""]
