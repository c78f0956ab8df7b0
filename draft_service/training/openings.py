"""What a target's texts begin with: a chat template's frame around a user's turn, or nothing.

Without prompts the target writes the user's turn itself, in the empty place of its template, which
gives it questions of the kind that it was trained on. A target without a template begins with its
first token and goes on as it likes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from paceline.errors import InvalidConfig
from paceline.prompt_lines import is_sendable, read_prompt_lines

_TURN = "PACELINE-USER-TURN"
"""Stands for the user's turn where the template is cut around it."""
PROMPT_KEYS = ("prompt", "turns")
"""Of a line of a prompts file: a text, or texts of which the first counts (Spec-Bench)."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a sequence begins with."""

    token_ids: Sequence[int]
    closing: Sequence[int]
    """What is forced behind a user's turn that the target writes; empty where it writes none."""


class Openings:
    """Makes openings for one target."""

    def __init__(self, model: str, directory: Path) -> None:
        """`model` names the target in errors; its tokenizer is in `directory`."""
        self._model = model
        self._tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        first = self._tokenizer.bos_token_id
        self._first = self._tokenizer.eos_token_id if first is None else first

    def empty(self) -> Opening:
        """For a target that writes both sides."""
        if not self._tokenizer.chat_template:
            return Opening([self._first], ())
        before, _, behind = self._rendered(_TURN).partition(_TURN)
        return Opening(self._ids(before), self._ids(behind))

    def of_prompt(self, prompt: str) -> Opening:
        """For a given user's turn, or the beginning of a text where there is no template."""
        if not self._tokenizer.chat_template:
            return Opening([self._first, *self._ids(prompt)], ())
        return Opening(self._ids(self._rendered(prompt)), ())

    def _rendered(self, turn: str) -> str:
        messages = [{"role": "user", "content": turn}]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except ImportError as error:
            raise InvalidConfig(
                f"model {self._model!r} has a chat template, and rendering it needs jinja2: "
                f"pip install 'paceline[train]' ({error})"
            ) from None
        if turn.strip() not in text:  # templates may trim
            raise InvalidConfig(
                f"model {self._model!r}: its chat template changes the user's turn; expected it "
                "unchanged in the prompt, or text of the model in --data"
            )
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file of JSON lines, in order; raises `InvalidConfig` by line and key."""
    return [_prompt(f"{path}, line {number}", line) for number, line in read_prompt_lines(path)]


def _prompt(place: str, line: str) -> str:
    try:
        table = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{place}: not JSON: {error}") from None
    if not isinstance(table, dict):
        raise InvalidConfig(f"{place}: expected an object with one of {', '.join(PROMPT_KEYS)}")
    value = next((table[key] for key in PROMPT_KEYS if key in table), None)
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str) or not value or not is_sendable(value):
        raise InvalidConfig(
            f"{place}: has no text under {' or '.join(PROMPT_KEYS)}; expected a prompt"
        )
    return value
