"""Questions from a file: Spec-Bench's form, JSON lines with a prompt, or plain lines of text.

Task groups are Spec-Bench's: MT-bench's eight categories count as one, the other five as they are.
Knows nothing about asking them.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidConfig
from paceline.prompt_lines import is_sendable, read_prompt_lines

OTHER = "other"
"""The group of questions whose category is not one of Spec-Bench's."""

_MT_BENCH = (
    *("writing", "roleplay", "reasoning", "math"),
    *("coding", "extraction", "stem", "humanities"),
)
_GROUPS = {
    **dict.fromkeys(_MT_BENCH, "mt"),
    **{name: name for name in ("translation", "summarization", "qa", "math_reasoning", "rag")},
}


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, asked as the first turn of a conversation."""

    question_id: str
    category: str
    """As the file has it; empty if it has none."""
    text: str

    @property
    def group(self) -> str:
        """The task group in which it is counted."""
        return _GROUPS.get(self.category, OTHER)


def read_questions(path: Path) -> list[Question]:
    """All questions of a file, in order; raises `InvalidConfig` naming file, line and key."""
    numbered = read_prompt_lines(path)
    if not numbered[0][1].startswith("{"):
        return [Question(str(number), "", line) for number, line in numbered]
    questions = [_question(f"{path}, line {number}", number, line) for number, line in numbered]
    counts = Counter(question.question_id for question in questions)
    (question_id, count), *_ = counts.most_common(1)
    if count > 1:
        raise InvalidConfig(
            f"{path} has the question_id {question_id} {count} times, expected once"
        )
    return questions


def select(
    questions: Sequence[Question], names: Sequence[str], limit: int | None
) -> list[Question]:
    """Those of the named categories or groups, at most `limit` of each group.

    They are taken at even distances, since files are sorted by category: the first ten of MT-bench
    are all of two kinds. Raises `InvalidConfig` for a name that the questions do not have.
    """
    known = {name for q in questions for name in (q.category, q.group) if name}
    for name in names:
        if name not in known:
            raise InvalidConfig(
                f"--categories has {name!r}, expected some of {', '.join(sorted(known))}"
            )
    wanted = [q for q in questions if not names or q.category in names or q.group in names]
    if limit is None:
        return wanted
    kept: set[int] = set()
    for group in groups_of(wanted):
        members = [index for index, q in enumerate(wanted) if q.group == group]
        number = min(limit, len(members))
        kept.update(members[place * len(members) // number] for place in range(number))
    return [q for index, q in enumerate(wanted) if index in kept]


def groups_of(questions: Sequence[Question]) -> list[str]:
    """Their groups, in the order in which they first appear."""
    return list(dict.fromkeys(q.group for q in questions))


def _question(where: str, number: int, line: str) -> Question:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidConfig(f"{where} is {line[:40]!r}, expected a JSON object")
    return Question(
        str(found.get("question_id", number)), str(found.get("category", "")), _text(where, found)
    )


def _text(where: str, found: dict[str, Any]) -> str:
    match found:
        case {"turns": [str(text), *_]} | {"prompt": str(text)} if text and is_sendable(text):
            return text
        case {"turns": other} | {"prompt": other}:
            raise InvalidConfig(
                f"{where}: the prompt is {json.dumps(other)[:40]}, expected a text as `prompt` or "
                "a list of texts as `turns`"
            )
        case _:
            raise InvalidConfig(
                f"{where} has the keys {', '.join(found) or 'none'}, expected `turns` or `prompt`"
            )
