"""Finds the first stop string in a text that comes in pieces.

Knows nothing about tokens. Holds back exactly the longest end of the text that is a proper
beginning of some stop string, so that nothing of a stop string is ever given out and nothing is
held longer than it must be. The result does not depend on how the text was cut into pieces.
"""

from collections.abc import Sequence
from typing import NamedTuple

from paceline.errors import InvalidRequest


class Scanned(NamedTuple):
    """What a piece of text made certain."""

    text: str
    """What can be given out."""
    stopped: bool
    """A stop string was completed: `text` ends before it, and nothing follows."""


class StopScanner:
    """Looks for stop strings in one answer.

    The first character that completes a stop string decides; when it completes several, the one
    that begins first.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Raises InvalidRequest when a stop string is empty."""
        for index, text in enumerate(stop):
            if not text:
                raise InvalidRequest(f"stop[{index}] is empty; expected a text to stop at", "stop")
        self._matchers = [_Matcher(text) for text in stop]
        self._held = ""

    def feed(self, piece: str, can_stop: bool = True) -> Scanned:
        """Add a piece; with `can_stop` False a stop string that ends in it is let through."""
        if not self._matchers:
            return Scanned(piece, False)
        text = self._held + piece
        for end in range(len(self._held) + 1, len(text) + 1):
            completed = [matcher.size for matcher in self._matchers if matcher.feed(text[end - 1])]
            if completed and can_stop:
                self._held = ""
                return Scanned(text[: end - max(completed)], True)
        length = max(matcher.length for matcher in self._matchers)
        certain = len(text) - length
        self._held = text[certain:]
        return Scanned(text[:certain], False)

    def finish(self) -> str:
        """What is held back: at the end of the text it is no longer the beginning of anything."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Knuth, Morris and Pratt's automaton for one text."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._borders = _borders(pattern)
        self.size = len(pattern)
        self.length = 0
        """How many characters of the pattern the text ends with, never all of them."""

    def feed(self, character: str) -> bool:
        """Add a character. Returns whether the text now ends with the whole pattern."""
        while self.length and self._pattern[self.length] != character:
            self.length = self._borders[self.length - 1]
        if self._pattern[self.length] == character:
            self.length += 1
        if self.length < self.size:
            return False
        self.length = self._borders[-1]
        return True


def _borders(pattern: str) -> list[int]:
    """For each beginning of the pattern, its longest proper beginning that is also its end."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[length] != pattern[index]:
            length = borders[length - 1]
        if pattern[length] == pattern[index]:
            length += 1
        borders[index] = length
    return borders
