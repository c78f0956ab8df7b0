"""What generated text begins with, and what is forced on it."""

import json
from collections import deque
from pathlib import Path

import pytest
from tiny_models import save_checkpoint
from transformers import AutoTokenizer

from draft_service.training.generation import GeneratedSequence
from draft_service.training.openings import Openings, read_prompts
from paceline.errors import InvalidConfig

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}~{% endfor %}"
    "{% if add_generation_prompt %}[bot]{% endif %}"
)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_checkpoint(tmp_path_factory.mktemp("chat"))
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return directory


def test_a_chat_model_is_given_the_frame_of_a_users_turn(chat_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    opening = Openings("tiny", chat_model).empty()
    assert tokenizer.decode(opening.token_ids) == "[user]"
    assert tokenizer.decode(opening.closing) == "~[bot]"
    given = Openings("tiny", chat_model).of_prompt("How?")
    assert tokenizer.decode(given.token_ids) == "[user]How?~[bot]"
    assert not given.closing


def test_a_model_without_a_template_begins_with_its_first_token(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path) / "tokenizer_config.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({key: table[key] for key in table if key != "chat_template"}))
    openings = Openings("tiny", tmp_path)
    assert len(openings.empty().token_ids) == 1 and not openings.empty().closing
    assert len(openings.of_prompt("abc").token_ids) > 1


def test_a_template_that_changes_the_turn_is_refused(tmp_path: Path) -> None:
    directory = save_checkpoint(tmp_path)
    path = directory / "tokenizer_config.json"
    template = "{{ messages[0].content | lower }}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    with pytest.raises(InvalidConfig, match="its chat template changes the user's turn"):
        Openings("tiny", directory).empty()


def test_a_template_may_trim_the_turn(tmp_path: Path) -> None:
    directory = save_checkpoint(tmp_path)
    path = directory / "tokenizer_config.json"
    template = "<{{ messages[0].content | trim }}>"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    assert bytes(Openings("tiny", directory).of_prompt(" a b\n").token_ids) == b"<a b>"


def written(choices: list[int], opening: list[int], closing: list[int], longest: int) -> list[int]:
    sequence = GeneratedSequence(0.7, longest, deque(opening), closing)
    remaining = iter(choices)
    temperatures = []
    while not sequence.has_ended:
        own = sequence.chooses
        if own:
            temperatures.append(sequence.next_temperature)
        sequence.append(next(remaining) if own else -1, frozenset({2}))
    assert next(remaining, None) is None
    assert temperatures[-1] == 0.7
    return [*sequence.token_ids, -sequence.answer_start]


def test_a_turn_is_written_closed_and_answered() -> None:
    # 8 closes a turn in the template, 2 ends a text.
    assert written([5, 6, 8, 7, 2], [1, 3], [8, 9], 4) == [1, 3, 5, 6, 8, 9, 7, 2, -6]
    assert written([5, 2, 7, 2], [1, 3], [8, 9], 4) == [1, 3, 5, 8, 9, 7, 2, -5]


def test_what_is_too_long_is_cut() -> None:
    assert written([5, 5, 5, 7, 7], [1], [8, 9], 2) == [1, 5, 5, 8, 9, 7, 7, -5]


def test_an_answer_follows_a_prompt_at_once() -> None:
    assert written([7, 2], [1, 4, 4], [], 4) == [1, 4, 4, 7, 2, -3]


def test_prompts_are_read_from_the_keys_of_both_kinds_of_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"turns": ["b", "c"]}\n')
    assert read_prompts(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "are empty"),
        ('{"prompt": "a"}\nb\n', "line 2: not JSON"),
        ('{"question": "a"}\n', "line 1: has no text under prompt or turns"),
        ('{"prompt": ""}\n', "line 1: has no text"),
        ('{"turns": []}\n', "line 1: has no text"),
        ("[1]\n", "line 1: expected an object"),
        ('{"prompt": "a\\ud800"}\n', "line 1: has no text"),
        ("[" * 100_000, "line 1: not JSON"),
    ],
)
def test_a_wrong_prompts_file_is_refused_by_its_line(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidConfig, match=said):
        read_prompts(path)
    with pytest.raises(InvalidConfig, match="cannot be read: No such file"):
        read_prompts(tmp_path / "none.jsonl")
