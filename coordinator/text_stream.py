"""Committed tokens of one answer into the text that its client sees, up to where it stops.

What ends an answer, apart from its limits:

- a stop token (the model's end of sequence unless ignored, and the request's `stop_token_ids`):
  it counts as a token of the answer but is not part of its text, special or not;
- a stop string: the token that completes it is the last one; the text ends before it.

A stop string is not heeded in the first `min_tokens` tokens (it may begin in them). A stop token
always is: the target does not choose one there, unless a grammar leaves nothing else. Tokens behind
the end of the answer are dropped. Text, tokens and end are the same however rounds cut the tokens.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from coordinator.detokenizer import Detokenizer
from coordinator.stop_scanner import StopScanner
from coordinator.tokenizer import Tokenizer


class TextStep(NamedTuple):
    """What some tokens brought."""

    token_ids: tuple[int, ...]
    """Those that belong to the answer: all, unless it ended among them."""
    text: str
    """The text that has become certain."""
    stopped: bool
    """The answer has ended. `finish` may still have text."""


class TextStream:
    """The text of one answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        stop_token_ids: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        """Raises InvalidRequest when a stop string is empty."""
        self._detokenizer = Detokenizer(tokenizer)
        self._scanner = StopScanner(stop)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_unstoppable = min_tokens
        self._stopped_by_text = False

    def feed(self, token_ids: Sequence[int]) -> TextStep:
        """Add committed tokens. Not to be called again once the answer has ended."""
        text: list[str] = []
        for index, token_id in enumerate(token_ids):
            can_stop = self._num_unstoppable <= 0
            self._num_unstoppable -= 1
            if token_id in self._stop_token_ids:
                return TextStep(tuple(token_ids[: index + 1]), "".join(text), True)
            scanned = self._scanner.feed(self._detokenizer.feed(token_id), can_stop)
            text.append(scanned.text)
            if scanned.stopped:
                self._stopped_by_text = True
                return TextStep(tuple(token_ids[: index + 1]), "".join(text), True)
        return TextStep(tuple(token_ids), "".join(text), False)

    def finish(self) -> str:
        """The rest of the text, once the answer has ended for whatever reason."""
        if self._stopped_by_text:
            return ""
        scanned = self._scanner.feed(self._detokenizer.finish(), self._num_unstoppable < 0)
        return scanned.text if scanned.stopped else scanned.text + self._scanner.finish()
