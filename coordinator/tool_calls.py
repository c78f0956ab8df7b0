"""Tool calls out of the text of an answer, as it comes.

Finds `<tool_call>{"name": …, "arguments": …}</tool_call>` (see `coordinator.tool_format`). A call
is told as soon as its name is known, its arguments as they come, letter for letter. The result does
not depend on how the text was cut into pieces. Knows nothing about tokens or grammars.

What only begins like a call is text: as long as its name is not known, what goes against the form
makes text of the whole. Behind the name it ends the arguments where they are. A call whose
`</tool_call>` is missing ends with its last brace. White space around calls belongs to nobody.
"""

import hashlib
import json
from typing import NamedTuple

from coordinator.json_object import JsonObject, ObjectState
from coordinator.tool_format import CALL_BEGIN, CALL_END
from coordinator.tools import ToolCallDelta

_SPACE = " \t\r\n"


class Parsed(NamedTuple):
    """What a piece of text made certain."""

    content: str
    """Text outside of calls."""
    tool_calls: tuple[ToolCallDelta, ...]
    """What is new of each call, at most one for each."""


class ToolCallParser:
    """Reads one answer."""

    def __init__(self, answer_id: str) -> None:
        """`answer_id`: the ids of calls follow from it, so that a resumed answer repeats them."""
        self._answer_id = answer_id
        self._held = ""
        """Text that may be the beginning of a call, and the white space before it."""
        self._call: _Call | None = None
        self._content = ""
        self._deltas: dict[int, ToolCallDelta] = {}
        self.num_calls = 0
        """How many calls have been told."""
        self._is_behind_call = False
        """Nothing but white space stands between the last call and here."""

    def feed(self, piece: str) -> Parsed:
        """Add a piece."""
        while piece:
            piece = self._feed_text(piece) if self._call is None else self._feed_call(piece)
        return self._take()

    def finish(self) -> Parsed:
        """The answer is complete."""
        if self._call is not None and not self._call.name:
            self._say(CALL_BEGIN + self._call.raw)
        if not self._is_behind_call or self._held.strip(_SPACE):
            self._say(self._held)
        self._held, self._call = "", None
        return self._take()

    def _take(self) -> Parsed:
        parsed = Parsed(self._content, tuple(self._deltas.values()))
        self._content, self._deltas = "", {}
        return parsed

    def _say(self, text: str) -> None:
        self._content += text
        self._is_behind_call = self._is_behind_call and not text

    def _feed_text(self, piece: str) -> str:
        """Returns what stands behind the beginning of a call."""
        before, mark, behind = (self._held + piece).partition(CALL_BEGIN)
        if mark:
            self._say(before.rstrip(_SPACE))
            self._held, self._call = "", _Call()
            return behind
        certain = before[: len(before) - _length_begun(before, CALL_BEGIN)].rstrip(_SPACE)
        self._say(certain)
        self._held = before[len(certain) :]
        return ""

    def _feed_call(self, piece: str) -> str:
        """Returns what stands behind the call."""
        call = self._call
        assert call is not None
        for index, character in enumerate(piece):
            was_told = bool(call.name)
            call.feed(character)
            if call.name:
                self._tell(call, is_new=not was_told)
            if call.is_over:
                self._call = None
                if not call.name:
                    # Its mark is text, and so is the rest, unless a call begins there.
                    self._say(CALL_BEGIN)
                return (call.behind if call.name else call.raw) + piece[index + 1 :]
        return ""

    def _tell(self, call: "_Call", is_new: bool) -> None:
        if is_new:
            self.num_calls += 1
            self._is_behind_call = True
        number, arguments = self.num_calls - 1, call.take_arguments()
        if number in self._deltas:
            arguments = self._deltas[number].arguments + arguments
            self._deltas[number] = self._deltas[number]._replace(arguments=arguments)
        elif is_new:
            self._deltas[number] = ToolCallDelta(number, self._id(number), call.name, arguments)
        elif arguments:
            self._deltas[number] = ToolCallDelta(number, "", "", arguments)

    def _id(self, number: int) -> str:
        key = f"{self._answer_id}/{number}".encode()
        return "call_" + hashlib.blake2b(key, digest_size=12).hexdigest()


class _Call:
    """What stands behind one `<tool_call>`."""

    def __init__(self) -> None:
        self.raw = ""
        """All of it, as long as there is no name."""
        self.name = ""
        self.behind = ""
        """What stands behind the object and may be the beginning of `</tool_call>`."""
        self.is_over = False
        self._object = JsonObject()
        self._arguments = ""
        self._has_arguments = False
        self._num_taken = 0

    def take_arguments(self) -> str:
        """What is new of the arguments."""
        new = self._arguments[self._num_taken :]
        self._num_taken += len(new)
        return new

    def feed(self, character: str) -> None:
        """Add a character."""
        if not self.name:
            self.raw += character
        if self._object.state is ObjectState.OPEN:
            self._object.feed(character)
            self._learn(self._object)
        else:
            self._close(character)

    def _learn(self, read: JsonObject) -> None:
        if read.key == "arguments" and not self._has_arguments:
            self._arguments, self._has_arguments = read.value, read.has_value
        if read.key == "name" and read.has_value and not self.name:
            self.name = _text(read.value)
            self.is_over = not self.name
        if read.state is not ObjectState.OPEN and not self.name:
            self.is_over = True
        if read.state is ObjectState.COMPLETE and not self._arguments:
            self._arguments = "{}"

    def _close(self, character: str) -> None:
        self.behind += character
        mark = self.behind.lstrip(_SPACE)
        if self._object.state is ObjectState.BROKEN:
            mark = self.behind = self.behind[-len(CALL_END) :]
            self.is_over = mark == CALL_END
        else:
            self.is_over = mark == CALL_END or not CALL_END.startswith(mark)
        if mark == CALL_END:
            self.behind = ""


def _text(value: str) -> str:
    """What a JSON string says; nothing for other values."""
    try:
        text = json.loads(value, strict=False)
    except ValueError:
        return ""
    return text if isinstance(text, str) else ""


def _length_begun(text: str, mark: str) -> int:
    """The length of the longest end of the text that is a proper beginning of the mark."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
