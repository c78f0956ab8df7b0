"""Tokens of a text with their log-probabilities, spelled out for clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpelledToken:
    """A token, and what it adds to a text."""

    token_id: int
    name: str
    """What it adds; of a special token its name."""
    bytes: bytes | None
    """The same in bytes, which may be part of a character; None for a special token."""


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token that could stand in some place, and how likely the target held it to be there."""

    token: SpelledToken
    logprob: float
    """Natural logarithm."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of a text, and the ones most likely in its place."""

    token: SpelledToken
    logprob: float | None
    """Natural logarithm; None for the first token of all, which nothing stands before."""
    top: tuple[LikelyToken, ...]
    """Most likely first; may or may not hold `token`."""
    text_offset: int
    """Characters of the text before it. The tokens of one character share where that begins."""
