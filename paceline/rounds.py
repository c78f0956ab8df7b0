"""Sequences, spans and rounds as plain Python: what coordinator, drafts and targets say.

Mirrors `protos/paceline/v1` (`paceline.wire` converts); knows nothing about gRPC. A token's
position is its absolute index in the sequence, prompt included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 2
"""Additions that older peers ignore, and that newer ones do without: `protos/paceline/v1`."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """ "Your copy is right up to `start`; drop what follows; append these." """

    start: int
    prefix_hash: int
    token_ids: Sequence[int]


class AcceptanceRule(Enum):
    """Which drafts become text (`target_service/acceptance.py`); values as in the protocol."""

    COUPLED = 1
    REJECTION = 2
    BLOCK = 3


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """How the tokens of a sequence are chosen; all that a takeover needs beside the tokens."""

    max_length: int
    """The sequence is never made longer than this, prompt included."""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Nothing is committed behind one of these tokens."""
    min_length: int = 0
    """While the sequence is shorter than this, the stop tokens are banned."""
    cache_salt: str = ""
    prompt_length: int = 0
    """Tokens before this position are the prompt."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    acceptance_rule: AcceptanceRule = AcceptanceRule.COUPLED
    num_logprobs: int | None = None
    """How many of the most likely tokens come with each committed one; None: nothing at all."""
    grammar: str = ""
    """What the text behind the prompt must follow, as llguidance reads it; empty: nothing."""

    @property
    def samples_drafts(self) -> bool:
        """Whether drafts are sampled with noise of their own, and judged by draws."""
        return self.temperature > 0.0 and self.acceptance_rule is not AcceptanceRule.COUPLED


@dataclass(frozen=True, slots=True)
class Support:
    """The law that a draft was sampled from: each token has the probability weight / sum."""

    token_ids: Sequence[int]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True)
class Drafts:
    """Proposed tokens: a chain when `parents` is empty, else a tree (`paceline.token_tree`)."""

    token_ids: Sequence[int] = ()
    parents: Sequence[int] = ()
    """The index of the token that each one follows, smaller than its own; -1: the span."""
    supports: Sequence[Support] = ()
    """One per token of a chain that was sampled for the rules `rejection` and `block`."""
    confidences: Sequence[float] = ()
    """What the drafter thinks: the chance that each token is accepted once those before it are.
    Fewer than tokens where it does not say."""

    def head(self, length: int) -> "Drafts":
        """The first `length` tokens, as a target needs them: a chain or a tree too."""
        return Drafts(self.token_ids[:length], self.parents[:length], self.supports[:length])


NO_DRAFTS = Drafts()


class RoundErrorReason(Enum):
    """Why a round failed; values as in the protocol."""

    INVALID_ARGUMENT = 1
    TOO_LONG = 2
    OVERLOADED = 3
    DRAINING = 4
    INTERNAL = 5


@dataclass(frozen=True, slots=True)
class RoundError:
    """The failure of one sequence's round; its stream and the other sequences go on."""

    reason: RoundErrorReason
    message: str


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """Where the time of a round went inside a worker."""

    queue_us: int = 0
    compute_us: int = 0
    pass_rows: int = 0
    pass_sequences: int = 0
    num_steps: int = 0
    """Of a proposal: the steps of the drafter's model for it; 0 for none, as for a copy."""
    num_rows: int = 0
    """Of a verification: tokens of the sequence that were run for this result."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The state of a worker, sent along with its answers."""

    num_sequences: int = 0
    num_waiting: int = 0
    kv_used: int = 0
    kv_capacity: int = 0
    num_preemptions: int = 0
    draining: bool = False
    """It shuts down, goes on with the sequences that it has, and should get no other ones."""


@dataclass(frozen=True, slots=True)
class Features:
    """Hidden states of the target `[num_rows, feature_size]`, half precision, little-endian."""

    start: int
    """Position of the first token that has a row."""
    num_rows: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ProposeRound:
    """One sequence that wants up to `num_speculative_tokens` drafts."""

    sequence_id: str
    round: int
    span: TokenSpan
    num_speculative_tokens: int
    settings: SequenceSettings | None = None
    traceparent: str = ""
    features: Features | None = None
    min_confidence: float = 0.0
    """No draft is wanted whose acceptance, and that of all before it, is less likely than this."""
    min_step_confidence: float = 0.0
    """The same of a draft that takes a step of the drafter's model, before the step is made."""
    max_steps: int = 0
    """Most steps of the drafter's model, as more would come too late; 0 for as many as it takes."""
    tracestate: str = ""


class DraftFault(Enum):
    """What is wrong with a drafter, or with what it is fed; values as in the protocol."""

    NOT_A_NUMBER = 1
    NO_FEATURES = 2


@dataclass(frozen=True, slots=True)
class ProposeResult:
    """The answer to a `ProposeRound`; with `held` set the caller sends again from there."""

    sequence_id: str
    round: int
    held: int | None = None
    drafts: Drafts = NO_DRAFTS
    timing: RoundTiming = RoundTiming()
    error: RoundError | None = None
    features_from: int | None = None
    """Where the features begin that the drafter lacks; None when it is not fed with any."""
    fault: DraftFault | None = None
    """What kept the drafter from proposing more, when it should not have."""

    @property
    def last(self) -> bool:
        """Whether no more results follow for the round: a proposal comes in one."""
        return True


@dataclass(frozen=True, slots=True)
class VerifyRound:
    """One sequence that wants tokens: its drafts checked, then the target's own."""

    sequence_id: str
    round: int
    span: TokenSpan
    drafts: Drafts = NO_DRAFTS
    max_new_tokens: int = 1
    settings: SequenceSettings | None = None
    traceparent: str = ""
    score_from: int | None = None
    """When set, nothing is committed: the log-probabilities of the sequence's own tokens from this
    position on are the answer."""
    features_from: int | None = None
    """When set, the last result brings the features from this position on."""
    tracestate: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probability of a token, and the most likely ones in its place.

    They are the model's own: before bias, penalties, temperature and filters.
    """

    logprob: float
    top_token_ids: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """One pass of a `VerifyRound`.

    `start` is the position of the first of `token_ids`, or of `logprobs` when the round scores.
    """

    sequence_id: str
    round: int
    held: int | None = None
    start: int = 0
    token_ids: Sequence[int] = ()
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    last: bool = True
    timing: RoundTiming = RoundTiming()
    error: RoundError | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    """One per committed token when the settings ask for them, or one per scored token."""
    features: Features | None = None


@dataclass(frozen=True, slots=True)
class PassCost:
    """Measured milliseconds of a pass of `rows` rows behind `context` tokens."""

    rows: int
    context: int
    milliseconds: float


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker is; zero and empty fields mean "no limit" and "any"."""

    instance_id: str
    version: str
    model: str = ""
    numerics: str = ""
    tokenizer_digest: str = ""
    vocab_size: int = 0
    max_model_len: int = 0
    max_speculative_tokens: int = 0
    drafter: str = ""
    pass_costs: tuple[PassCost, ...] = ()
    feature_layers: tuple[int, ...] = ()
    """The hidden states that a target keeps, or that a draft is fed with."""
    feature_size: int = 0
    feature_projection: str = ""
    """Digest of the matrix that they have gone through when they are sent; empty for none."""
    num_parameters: int = 0
    """Of its model, or of its head without what that borrows from the target."""
    started_at_ms: int = 0
    """Unix time in milliseconds at which it began to serve; 0: it does not say."""
    varies_with_width: bool = False
    """Whether the bits of a row depend on the other rows of a pass."""
    protocol_major: int = PROTOCOL_MAJOR
    protocol_minor: int = PROTOCOL_MINOR

    @property
    def longest_sequence(self) -> int:
        """Most tokens, prompt included, of a sequence that it takes."""
        return self.max_model_len or 2**32 - 1

    def is_fed_by(self, target: "WorkerInfo") -> bool:
        """Whether a target sends the hidden states that this draft is fed with, if it is."""
        return not self.feature_layers or (
            self.feature_layers == target.feature_layers
            and self.feature_projection == target.feature_projection
        )
