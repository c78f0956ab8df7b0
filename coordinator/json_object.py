"""A JSON object that comes in pieces, member by member.

Knows where keys and values begin and end; what is inside of a value that is an object or a list is
not checked beyond its strings and brackets. Knows nothing about what the members mean.
"""

import json
from collections.abc import Callable
from enum import Enum, auto

_SPACE = " \t\r\n"
_VALUE_BEGIN = '{["-0123456789tfn'


class ObjectState(Enum):
    """How far an object has come."""

    OPEN = auto()
    COMPLETE = auto()
    BROKEN = auto()
    """It is no object."""


class JsonObject:
    """Reads one object."""

    def __init__(self) -> None:
        self.state = ObjectState.OPEN
        self.key = ""
        """Of the last member whose key is complete."""
        self.value = ""
        """Of that member, as far as it has come, letter for letter."""
        self.has_value = False
        """Whether the last character made the value complete."""
        self._read: Callable[[str], None] = self._begin
        self._raw_key = ""
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, character: str) -> None:
        """Add a character. Not to be called again once the object is complete or broken."""
        self.has_value = False
        self._read(character)

    def _begin(self, character: str) -> None:
        self._expect(character, {"{": self._key_or_end})

    def _key_or_end(self, character: str) -> None:
        if character == "}":
            self.state = ObjectState.COMPLETE
            return
        self._raw_key = character
        self._expect(character, {'"': self._in_key})
        self._in_string = True

    def _in_key(self, character: str) -> None:
        self._raw_key += character
        self._follow_string(character)
        if self._in_string:
            return
        try:
            self.key, self.value = json.loads(self._raw_key, strict=False), ""
        except ValueError:
            self.state = ObjectState.BROKEN
        self._read = self._colon

    def _colon(self, character: str) -> None:
        self._expect(character, {":": self._value_begin})

    def _value_begin(self, character: str) -> None:
        self._expect(character, dict.fromkeys(_VALUE_BEGIN, self._in_value))
        if self._read == self._in_value:
            self._in_value(character)

    def _in_value(self, character: str) -> None:
        is_outside = not self._in_string and self._depth == 0
        if is_outside and self.value and character in ",}" + _SPACE:
            # The character behind a number or a word ends it.
            self.has_value = True
            self._read = self._member_end
            self._member_end(character)
            return
        self.value += character
        if self._in_string:
            self._follow_string(character)
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        if not self._in_string and self._depth == 0 and character in '"}]':
            self.has_value = True
            self._read = self._member_end

    def _member_end(self, character: str) -> None:
        if character == "}":
            self.state = ObjectState.COMPLETE
            return
        self._expect(character, {",": self._key_or_end})

    def _expect(self, character: str, following: dict[str, Callable[[str], None]]) -> None:
        if character in following:
            self._read = following[character]
        elif character not in _SPACE:
            self.state = ObjectState.BROKEN

    def _follow_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
