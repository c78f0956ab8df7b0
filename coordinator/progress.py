"""Committed tokens of one choice into the steps that its client gets, up to where it ends.

A client that resumes has the first `resume_from` tokens and their text already; since text depends
on tokens alone and not on how rounds cut them, what is left out is exactly what it has.
"""

from coordinator.requests import FinishReason, Generation, GenerationStep
from coordinator.text_stream import TextStep, TextStream


class Progress:
    """How far one choice has come."""

    def __init__(
        self, generation: Generation, text: TextStream, resume_from: int = 0, choice: int = 0
    ) -> None:
        self._generation = generation
        self._text = text
        self._resume_from = resume_from
        self._choice = choice
        self.num_committed_tokens = 0
        self.finish_reason: FinishReason | None = None

    def advance(self, token_ids: tuple[int, ...], is_last: bool) -> GenerationStep | None:
        """The step that these tokens make; None when the client has all of it already."""
        num_known = max(self._resume_from - self.num_committed_tokens, 0)
        known = self._text.feed(token_ids[:num_known])
        new = TextStep((), "", True) if known.stopped else self._text.feed(token_ids[num_known:])
        num_kept = len(known.token_ids) + len(new.token_ids)
        self.num_committed_tokens += num_kept
        self._generation.num_committed_tokens += num_kept
        text = new.text
        if new.stopped or is_last:
            self.finish_reason = FinishReason.STOP if new.stopped else FinishReason.LENGTH
            # The end of the text went out with the last tokens: who has them has that too.
            text += self._text.finish() if new.token_ids else ""
        if not new.token_ids and self.finish_reason is None:
            return None
        return GenerationStep(
            new.token_ids, text, self.num_committed_tokens, self.finish_reason, self._choice
        )
