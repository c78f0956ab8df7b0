"""A growing sequence of the target's tokens, followed in the draft's.

The text is split as the draft's own tokenizer splits it, which is what its model has learnt. What
lies behind is never split again: a *chunk* is closed where a word begins, and only the open one at
the end is read anew when tokens come. Special tokens become the draft's own where it has them
(`special_pairs`), else the text by which they are written.
"""

import re
from array import array
from collections.abc import Sequence

from draft_service.translation.shared_tokens import special_pairs
from draft_service.translation.vocabulary import Vocabulary

CHUNK_BYTES = 64
"""A chunk is closed at the first beginning of a word behind so many bytes."""
MAX_CHUNK_BYTES = 512
"""Text without words is cut here, wherever that is."""
_SEARCHED_BYTES = MAX_CHUNK_BYTES + 2
"""No further, so that it does not matter how much of the text is there already."""
_WORD = re.compile(rb"(?<=[^\s]) (?=[^\s])")


class Respelling:
    """One sequence."""

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target = target
        self._draft = draft
        self._special = special_pairs(target, draft)
        self._restart()

    def _restart(self) -> None:
        self._source: array[int] = array("I")
        self._closed: list[int] = []
        self.open_text = b""
        """The text behind the last closed chunk or special token."""

    def follow(self, token_ids: "array[int]") -> list[int]:
        """The draft's tokens for all of the target's."""
        known = len(self._source)
        if token_ids[:known] != self._source:
            self._restart()
            known = 0
        if known == 0 and not (token_ids and token_ids[0] in self._special):
            self._closed += self._draft.prefix
        self._source = token_ids[:]
        for token_id in token_ids[known:]:
            self._read(token_id)
            if len(self.open_text) > MAX_CHUNK_BYTES:
                self._close_words()
        self._close_words()
        return self._closed + self._draft.encode(self.open_text)

    def _read(self, token_id: int) -> None:
        if token_id in self._special:
            self._close(len(self.open_text))
            self._closed.append(self._special[token_id])
        elif token_id in self._target.special:
            self.open_text += self._target.special[token_id].encode()
        elif token_id < len(self._target):
            self.open_text += self._target.token_bytes[token_id]

    def _close_words(self) -> None:
        while len(self.open_text) > CHUNK_BYTES:
            word = _WORD.search(self.open_text, CHUNK_BYTES, _SEARCHED_BYTES)
            if word is not None:
                self._close(word.start())
            elif len(self.open_text) >= _SEARCHED_BYTES:
                self._close(_character_start(self.open_text, MAX_CHUNK_BYTES))
            else:
                return

    def _close(self, num_bytes: int) -> None:
        self._closed += self._draft.encode(self.open_text[:num_bytes])
        self.open_text = self.open_text[num_bytes:]


def _character_start(text: bytes, place: int) -> int:
    """The first byte of the character, or of what should be one, that `place` is in."""
    return next((p for p in range(place, place - 4, -1) if text[p] & 0xC0 != 0x80), place)


def continuation(vocabulary: Vocabulary, before: bytes, text: bytes) -> Sequence[int]:
    """The tokens of `text` behind `before`, split as the two together would be where that has a
    boundary between them."""
    together = vocabulary.encode(before + text)
    num_bytes = 0
    for index, token_id in enumerate(together):
        if num_bytes == len(before):
            return together[index:]
        num_bytes += len(vocabulary.token_bytes[token_id])
    return vocabulary.encode(text)
