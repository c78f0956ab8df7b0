"""Committed tokens of one choice into the steps that its client gets, up to where it ends.

A client that resumes has the first `resume_from` tokens and their text already; since text depends
on tokens alone and not on how rounds cut them, what is left out is exactly what it has.
"""

from collections.abc import Sequence

from coordinator.requests import FinishReason, Generation, GenerationStep
from coordinator.scored_tokens import ScoredToken
from coordinator.text_stream import TextStep, TextStream
from coordinator.token_speller import TokenSpeller
from coordinator.tool_calls import Parsed, ToolCallParser
from paceline.rounds import TokenLogprobs


class Progress:
    """How far one choice has come."""

    def __init__(
        self,
        generation: Generation,
        text: TextStream,
        resume_from: int = 0,
        choice: int = 0,
        calls: ToolCallParser | None = None,
        speller: TokenSpeller | None = None,
    ) -> None:
        """`calls` takes tool calls out of the text; None: they stay text.

        A `speller` makes steps with log-probabilities.
        """
        self._generation = generation
        self._text = text
        self._resume_from = resume_from
        self._choice = choice
        self._calls = calls
        self._speller = speller
        self.num_committed_tokens = 0
        self.finish_reason: FinishReason | None = None

    def advance(
        self,
        token_ids: tuple[int, ...],
        is_last: bool,
        logprobs: Sequence[TokenLogprobs | None] = (),
    ) -> GenerationStep | None:
        """The step that these tokens make; None when the client has all of it already.

        With a speller there is an item of `logprobs` for each token, which may be None for those
        that the client has.
        """
        num_known = max(self._resume_from - self.num_committed_tokens, 0)
        known = self._text.feed(token_ids[:num_known])
        new = TextStep((), "", True) if known.stopped else self._text.feed(token_ids[num_known:])
        num_kept = len(known.token_ids) + len(new.token_ids)
        spelled: tuple[ScoredToken, ...] = ()
        if self._speller is not None:
            spelled = self._speller.spell(token_ids[:num_kept], logprobs[:num_kept])
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
            token_ids=new.token_ids,
            text=parsed.content,
            num_committed_tokens=self.num_committed_tokens,
            finish_reason=self.finish_reason,
            choice=self._choice,
            tool_calls=parsed.tool_calls,
            logprobs=spelled[len(known.token_ids) :],
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
