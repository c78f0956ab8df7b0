"""Text out of tokens as they come, in time linear in their number.

Knows nothing about stops or requests. Invariant: what has been given out never holds half a
character, and together with what `finish` gives it is the tokenizer's `decode` of all tokens,
however they were cut into rounds.
"""

import codecs

from coordinator.tokenizer import Tokenizer


class Detokenizer:
    """The text of one answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The characters that are whole with this token."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """A character that stays half: U+FFFD, or nothing when none was begun."""
        return self._decoder.decode(b"", final=True)
