"""Committed tokens of one choice into the steps that its client gets, up to where it ends.

A client that resumes has the first `resume_from` tokens and their text already; since text depends
on tokens alone and not on how rounds cut them, what is left out is exactly what it has.
"""

from coordinator.requests import FinishReason, Generation, GenerationStep
from coordinator.text_stream import TextStep, TextStream
from coordinator.tool_calls import Parsed, ToolCallParser


class Progress:
    """How far one choice has come."""

    def __init__(
        self,
        generation: Generation,
        text: TextStream,
        resume_from: int = 0,
        choice: int = 0,
        calls: ToolCallParser | None = None,
    ) -> None:
        """`calls` takes tool calls out of the text; None: they stay text."""
        self._generation = generation
        self._text = text
        self._resume_from = resume_from
        self._choice = choice
        self._calls = calls
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
        self._parse(known.text)
        text = new.text
        is_end = new.stopped or is_last
        if is_end:
            text += self._text.finish()
        parsed = self._parse(text, is_end)
        if is_end:
            self.finish_reason = self._reason(new.stopped)
        if not new.token_ids:
            if self.finish_reason is None:
                return None
            # The end of the text went out with the last tokens: who has them has that too.
            parsed = Parsed("", ())
        return GenerationStep(
            new.token_ids,
            parsed.content,
            self.num_committed_tokens,
            self.finish_reason,
            self._choice,
            parsed.tool_calls,
        )

    def _parse(self, text: str, is_end: bool = False) -> Parsed:
        if self._calls is None:
            return Parsed(text, ())
        parsed = self._calls.feed(text)
        rest = self._calls.finish().content if is_end else ""
        return Parsed(parsed.content + rest, parsed.tool_calls)

    def _reason(self, stopped: bool) -> FinishReason:
        if not stopped:
            return FinishReason.LENGTH
        has_calls = self._calls is not None and self._calls.num_calls > 0
        return FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP
