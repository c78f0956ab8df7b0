"""Files with a prompt per line, as text: what a line means is its reader's business.

Only a line feed ends a line. JSON texts may hold the other characters that Unicode breaks lines
with, such as U+2028.
"""

from pathlib import Path

from paceline.errors import InvalidConfig


def read_prompt_lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, each with its number from 1.

    Raises:
        InvalidConfig: the file cannot be read, is not UTF-8 or has nothing else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise InvalidConfig(f"the prompts {str(path)!r} cannot be read: {reason}") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise InvalidConfig(f"the prompts {str(path)!r} are empty; expected a prompt per line")
    return lines


def is_sendable(text: str) -> bool:
    """Whether it is Unicode: JSON can spell half a surrogate pair, which UTF-8 has not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
