"""What a front end (HTTP, gRPC) asks of the coordinator, and what it hears back.

Plain values, already validated in shape; whether a request fits the model is checked by
`Generator.prepare`, which raises `InvalidRequest` naming the field.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from coordinator.scored_tokens import ScoredToken
from coordinator.tools import Tool, ToolCall, ToolCallDelta, ToolChoice


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of the role `assistant`."""
    tool_call_id: str = ""
    """Of the role `tool`: the call whose result this is."""


Prompt = str | Sequence[int] | Sequence[ChatMessage]
"""A text as it is, token ids as they are, or a conversation for the chat template."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a request speculates: `auto`, `off`, or a drafter's name."""

    method: str = "auto"
    num_speculative_tokens: int | None = None
    """With `auto` a maximum, else exact unless budget, context or a missing match cuts it."""
    acceptance_rule: str = ""
    """`coupled`, `rejection` or `block`; empty: the service's own choice. The last two keep the law
    of the text, not the text."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """An answer wanted, or several. None means that the client left it open."""

    request_id: str
    prompt: str | tuple[int, ...] | tuple[ChatMessage, ...]
    n: int = 1
    """Choices: answers to the same prompt, each with noise of its own."""
    prediction: str = ""
    """What the answer is expected to be like: drafts (`coordinator.prediction`)."""
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    num_logprobs: int | None = None
    """With each token its log-probability, and so many of the most likely tokens in its place.
    None: nothing of this."""
    prompt_logprobs: bool = False
    """Of the tokens of the prompt too."""
    speculation: Speculation = Speculation()
    session_id: str = ""
    tenant: str = ""
    """Whose it is. Nothing that is kept of a tenant's answers serves another one."""
    response_schema: str = ""
    """JSON schema that the answer must meet, as text; empty: any text will do."""
    tools: tuple[Tool, ...] = ()
    """Of a conversation only."""
    tool_choice: ToolChoice = ToolChoice.AUTO
    tool_name: str = ""
    """With `REQUIRED`: the one tool to be called, once; empty: any."""
    parallel_tool_calls: bool = True
    """Whether an answer may hold more than one call."""

    @property
    def session(self) -> str:
        """The name of its conversation among those of all tenants; empty: it has none."""
        in_tenant = self.tenant and self.session_id
        return f"{self.tenant}/{self.session_id}" if in_tenant else self.session_id

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools that the model gets to see."""
        return () if self.tool_choice is ToolChoice.NONE else self.tools


class FinishReason(Enum):
    """Why an answer ended; values as in the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(slots=True)
class SpeculativeStats:
    """What speculation did, for one answer or summed over many."""

    num_target_passes: int = 0
    num_spec_steps: int = 0
    """Rounds with drafts."""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    """`[j]`: rounds with drafts that accepted exactly j, up to the most drafts of any round."""
    num_committed_tokens: int = 0
    num_proposed_tokens: int = 0
    """Drafts that draft workers proposed; the target may have checked fewer."""
    draft_compute_us: int = 0
    """What draft workers computed for the rounds."""
    draft_failures: Counter[str] = field(default_factory=Counter)
    """Rounds whose drafts did not come, or were not what was asked for, by reason."""

    @property
    def tokens_per_target_pass(self) -> float:
        """Committed tokens per pass of the target; what goals are set on."""
        return self.num_committed_tokens / self.num_target_passes if self.num_target_passes else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted per round with drafts (vLLM's convention: the bonus token counts)."""
        if not self.num_spec_steps:
            return 0.0
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / proposed."""
        if not self.num_draft_tokens:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens

    def record_pass(self, num_draft_tokens: int, num_accepted: int, num_committed: int) -> None:
        """Count one pass of the target."""
        self.num_target_passes += 1
        self.num_committed_tokens += num_committed
        if num_draft_tokens == 0:
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_draft_tokens += num_accepted
        self._grow(num_draft_tokens + 1)
        self.acceptance_histogram[num_accepted] += 1

    def record_proposal(self, num_tokens: int, compute_us: int) -> None:
        """Count what a draft worker proposed for one round."""
        self.num_proposed_tokens += num_tokens
        self.draft_compute_us += compute_us

    def add(self, other: "SpeculativeStats") -> None:
        """Add the counts of another answer."""
        self.record_proposal(other.num_proposed_tokens, other.draft_compute_us)
        self.draft_failures.update(other.draft_failures)
        self.num_target_passes += other.num_target_passes
        self.num_spec_steps += other.num_spec_steps
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_draft_tokens += other.num_accepted_draft_tokens
        self.num_committed_tokens += other.num_committed_tokens
        self._grow(len(other.acceptance_histogram))
        for index, count in enumerate(other.acceptance_histogram):
            self.acceptance_histogram[index] += count

    def _grow(self, length: int) -> None:
        missing = length - len(self.acceptance_histogram)
        if missing > 0:
            self.acceptance_histogram.extend([0] * missing)


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """New tokens of a choice, and the text that has become certain with them."""

    token_ids: tuple[int, ...]
    text: str
    num_committed_tokens: int
    """Tokens of this choice so far, these included: a value to resume from."""
    finish_reason: FinishReason | None = None
    """Set in the last step of a choice only."""
    choice: int = 0
    """Which of the request's choices it belongs to; their steps come in any order."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    """What is new of calls; their text is not in `text`."""
    logprobs: tuple[ScoredToken, ...] = ()
    """One per token when the request asks for them."""


@dataclass(slots=True)
class Generation:
    """A request that has been admitted: its prompt in tokens, and its counts as they grow."""

    request: GenerationRequest
    prompt_token_ids: tuple[int, ...]
    seed: int
    max_tokens: int
    """The limit in force: the request's, or what the context leaves."""
    created: int
    """Unix time in seconds."""
    grammar: str = ""
    """What the text must follow, so that it has the format and the calls that the request wants."""
    stats: SpeculativeStats = field(default_factory=SpeculativeStats)
    num_committed_tokens: int = 0
    """Tokens of all choices so far."""
    num_accepted_prediction_tokens: int = 0
    """Of `num_committed_tokens`, those that were drafts out of the request's prediction."""
    num_rejected_prediction_tokens: int = 0
    """Other tokens of the prediction that were checked as drafts."""
    prompt_text: str = ""
    """The prompt as a text; empty for a chat."""
    is_chat: bool = False
    """Whether the prompt was a conversation."""
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    """One for each token of the prompt, from the first step on, when the request asks for them."""
    numerics_changed: bool = False
    """The answer moved between workers of unequal arithmetic (DESIGN §3)."""
    varies_with_width: bool = False
    """A target that it was on says that its bits depend on the width of a pass."""
    numerics: frozenset[str] = frozenset()
    """The digests of numerics of all targets that it was on."""
    traceparent: str = ""
    """The span of the request when it was admitted, for those of its resumptions to point at; empty
    where none is recorded."""

    @property
    def system_fingerprint(self) -> str | None:
        """A name for what the answer was computed with; None before its first token.

        The same request with the same seed gets the same text where this is the same, unless the
        answer `varies_with_width`.
        """
        if not self.numerics:
            return None
        digests = "\n".join(sorted(self.numerics)).encode()
        return "fp_" + hashlib.blake2b(digests, digest_size=6).hexdigest()
