"""Sequences, spans and rounds as plain Python: what coordinator, drafts and targets say.

Mirrors `protos/paceline/v1` (`paceline.wire` converts); knows nothing about gRPC. A token's
position is its absolute index in the sequence, prompt included.
"""

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0


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


@dataclass(frozen=True, slots=True)
class Support:
    """The law that a draft was sampled from: each token has the probability weight / sum."""

    token_ids: Sequence[int]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True)
class Drafts:
    """Proposed tokens: a chain when `parents` is empty, else a tree (-1: follows the span)."""

    token_ids: Sequence[int] = ()
    parents: Sequence[int] = ()
    supports: Sequence[Support] = ()
    """One per token of a chain that was sampled for the rules `rejection` and `block`."""


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


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The state of a worker, sent along with its answers."""

    num_sequences: int = 0
    num_waiting: int = 0
    kv_used: int = 0
    kv_capacity: int = 0
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class ProposeRound:
    """One sequence that wants up to `num_speculative_tokens` drafts."""

    sequence_id: str
    round: int
    span: TokenSpan
    num_speculative_tokens: int
    settings: SequenceSettings | None = None
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class ProposeResult:
    """The answer to a `ProposeRound`; with `held` set the caller sends again from there."""

    sequence_id: str
    round: int
    held: int | None = None
    drafts: Drafts = NO_DRAFTS
    timing: RoundTiming = RoundTiming()
    error: RoundError | None = None


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
    protocol_major: int = PROTOCOL_MAJOR
    protocol_minor: int = PROTOCOL_MINOR


@dataclass(slots=True)
class TokenLog:
    """The tokens of a sequence, four bytes each."""

    token_ids: "array[int]" = field(default_factory=lambda: array("I"))
    """Only `sync` may change what is there; anybody may append."""
    _num_hashed: int = field(default=0, init=False, compare=False)
    _hasher: "hashlib.blake2b" = field(
        default_factory=lambda: _new_hasher(), init=False, compare=False
    )
    """Has seen the first `_num_hashed` tokens: a long sequence is not hashed anew every round."""

    @classmethod
    def of(cls, token_ids: Iterable[int]) -> "TokenLog":
        """A log of these tokens."""
        return cls(array("I", token_ids))

    def __len__(self) -> int:
        return len(self.token_ids)

    def prefix_hash(self, length: int) -> int:
        """The hash of the first `length` tokens (see tokens.proto)."""
        if length < self._num_hashed:
            return prefix_hash(self.token_ids[:length])
        self._hasher.update(_packed(self.token_ids[self._num_hashed : length]))
        self._num_hashed = min(length, len(self))
        return int.from_bytes(self._hasher.digest(), "little")

    def span(self, start: int) -> TokenSpan:
        """The span that brings a worker which holds `start` tokens up to date."""
        return TokenSpan(start, self.prefix_hash(start), self.token_ids[start:])

    def sync(self, span: TokenSpan) -> bool:
        """Apply a span; False, and nothing changed, when what is before it cannot be vouched for.

        That is when it starts behind the end, or when the hash of what is before it differs.
        """
        if span.start > len(self) or self.prefix_hash(span.start) != span.prefix_hash:
            return False
        self.token_ids[span.start :] = array("I", span.token_ids)
        if span.start < self._num_hashed:
            self._num_hashed, self._hasher = 0, _new_hasher()
        return True


def prefix_hash(token_ids: "array[int]") -> int:
    """BLAKE2b-64 over little-endian 4-byte ids, read as a little-endian integer (tokens.proto)."""
    hasher = _new_hasher()
    hasher.update(_packed(token_ids))
    return int.from_bytes(hasher.digest(), "little")


def _new_hasher() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=8)


def _packed(token_ids: "array[int]") -> bytes:
    if sys.byteorder == "big":
        token_ids = token_ids[:]
        token_ids.byteswap()
    return token_ids.tobytes()


def common_length(a: "array[int]", b: "array[int]") -> int:
    """How many leading tokens are equal."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])
