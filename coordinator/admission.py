"""Whether a request can be answered, and with which settings.

Everything that is wrong with a request is found here, before its first token, and said in a
sentence that names the field, its value and what was expected.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace

from coordinator.records import Lease, Placement
from coordinator.requests import (
    FinishReason,
    Generation,
    GenerationRequest,
    Speculation,
)
from coordinator.tokenizer import Tokenizer
from paceline.errors import InvalidRequest, shown
from paceline.rounds import AcceptanceRule, SequenceSettings

MAX_STOPS = 4
"""Stop texts of a request, as in the OpenAI API."""
MAX_STOP_LENGTH = 4096
"""Characters. What may be the beginning of a stop text is held back."""
MAX_SESSION_ID_LENGTH = 256
MAX_SPECULATIVE_TOKENS = 64
MAX_LOGPROBS = 20
"""Most likely tokens that are told in the place of each: as in OpenAI's chats, and in vLLM."""
MAX_CHOICES = 16
"""Choices of a request: as many sequences, which share the workers with everybody else's."""

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the coordinator takes on."""

    max_running_requests: int = 64
    max_waiting_requests: int = 256
    num_speculative_tokens: int = 7
    """Most drafts per round that `auto` uses."""
    acceptance_rule: str = "coupled"
    """For requests that leave it open."""


@dataclass(slots=True, kw_only=True)
class Admitted(Generation):
    """A generation with the right to write its record."""

    lease: Lease = field(default_factory=lambda: Lease("", "", 0, b""))
    """Given by the session store."""
    recorded_token_ids: tuple[int, ...] = ()
    """Committed by an earlier run of the same request."""
    resume_from: tuple[int, ...] = ()
    """Tokens of each choice that the client has already; empty: none."""
    recorded_finish: FinishReason | None = None
    placement: Placement | None = None
    """Where an earlier run of the same request was."""
    prediction_token_ids: tuple[int, ...] = ()


def check_values(request: GenerationRequest, vocab_size: int) -> None:
    """Raise `InvalidRequest` for a value that no model could use."""
    _check(
        bool(_REQUEST_ID.fullmatch(request.request_id)),
        "request_id",
        request.request_id,
        "1 to 128 visible characters",
    )
    _check(1 <= request.n <= MAX_CHOICES, "n", request.n, f"1 to {MAX_CHOICES}")
    _check(
        request.max_tokens is None or request.max_tokens >= 0,
        "max_tokens",
        request.max_tokens,
        "at least 0",
    )
    _check(0 <= request.temperature <= 2, "temperature", request.temperature, "0 to 2")
    _check(0 < request.top_p <= 1, "top_p", request.top_p, "above 0, up to 1")
    _check(0 <= request.min_p <= 1, "min_p", request.min_p, "0 to 1")
    _check(0 <= request.top_k < 2**32, "top_k", request.top_k, "0 to 2**32 - 1")
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = getattr(request, name)
        _check(-2 <= penalty <= 2, name, penalty, "-2 to 2")
    penalty = request.repetition_penalty
    _check(0.01 <= penalty <= 100, "repetition_penalty", penalty, "0.01 to 100")
    number = request.num_logprobs
    expected = f"0 to {MAX_LOGPROBS}"
    _check(number is None or 0 <= number <= MAX_LOGPROBS, "num_logprobs", number, expected)
    _check(
        number is not None or not request.prompt_logprobs,
        "prompt_logprobs",
        request.prompt_logprobs,
        "num_logprobs to be set with it",
    )
    _check(request.min_tokens >= 0, "min_tokens", request.min_tokens, "at least 0")
    seed = request.seed
    _check(seed is None or 0 <= seed < 2**64, "seed", seed, "0 to 2**64 - 1")
    number = request.speculation.num_speculative_tokens
    _check(
        number is None or 0 <= number <= MAX_SPECULATIVE_TOKENS,
        "speculation.num_speculative_tokens",
        number,
        f"0 to {MAX_SPECULATIVE_TOKENS}",
    )
    _check(len(request.stop) <= MAX_STOPS, "stop", len(request.stop), f"up to {MAX_STOPS} texts")
    for text in request.stop:
        _check(0 < len(text) <= MAX_STOP_LENGTH, "stop", text, f"1 to {MAX_STOP_LENGTH} characters")
    session_id = request.session_id
    _check(
        len(session_id) <= MAX_SESSION_ID_LENGTH,
        "session_id",
        session_id,
        f"up to {MAX_SESSION_ID_LENGTH} characters",
    )
    number = len(request.stop_token_ids)
    _check(number <= vocab_size, "stop_token_ids", number, f"up to {vocab_size} ids")
    for token_id in request.stop_token_ids:
        _check(0 <= token_id < vocab_size, "stop_token_ids", token_id, f"ids below {vocab_size}")
    for token_id, bias in request.logit_bias:
        _check(0 <= token_id < vocab_size, "logit_bias", token_id, f"ids below {vocab_size}")
        _check(-100 <= bias <= 100, "logit_bias", bias, "-100 to 100")


def _check(is_right: bool, field: str, value: object, expected: str) -> None:
    if not is_right:
        raise InvalidRequest(f"{field}: is {shown(value)}; expected {expected}", field)


def check_speculation(speculation: Speculation, drafters: Collection[str | None]) -> None:
    """Raise `InvalidRequest` for a method that is neither general nor one of `drafters`.

    None among them is a draft that has not said yet what it is: then any may come, and until it
    does the request goes on without drafts, like any other.
    """
    known = ["auto", "off", *sorted(name for name in drafters if name is not None)]
    if speculation.method not in known and None not in drafters:
        raise InvalidRequest(
            f"speculation.method: {shown(speculation.method)} is not served here; expected one of "
            f"{', '.join(known)}",
            "speculation.method",
        )
    rules = [rule.name.lower() for rule in AcceptanceRule]
    _check(
        speculation.acceptance_rule in rules,
        "speculation.acceptance_rule",
        speculation.acceptance_rule,
        "one of " + ", ".join(rules),
    )


def with_rule(request: GenerationRequest, default: str) -> GenerationRequest:
    """The request with its acceptance rule decided, as its record must say it."""
    rule = request.speculation.acceptance_rule or default
    return replace(request, speculation=replace(request.speculation, acceptance_rule=rule))


def token_limit(
    request: GenerationRequest, num_prompt: int, longest_sequences: Collection[int]
) -> int:
    """New tokens that the request may have; raises `InvalidRequest` when it asks for too many.

    `longest_sequences` are the most tokens that each target takes. One that takes all is enough. A
    request that leaves its limit open gets one that as many targets as possible can meet.
    """
    longest = max(longest_sequences)
    room = longest - num_prompt
    if room < 1:
        raise InvalidRequest(
            f"prompt: has {num_prompt} tokens; this model takes prompt and answer of up to "
            f"{longest} tokens together",
            "prompt",
        )
    if request.max_tokens is not None and request.max_tokens > room:
        raise InvalidRequest(
            f"max_tokens: {request.max_tokens} with a prompt of {num_prompt} tokens does not fit; "
            f"this model takes prompt and answer of up to {longest} tokens together",
            "max_tokens",
        )
    limit = request.max_tokens
    if limit is None:
        needed = num_prompt + max(1, request.min_tokens)
        limit = min((n for n in longest_sequences if n >= needed), default=longest) - num_prompt
    if request.min_tokens > limit:
        raise InvalidRequest(
            f"min_tokens: {request.min_tokens} is more than the limit of {limit} tokens",
            "min_tokens",
        )
    return limit


def check_resume_from(
    resume_from: Sequence[int],
    generation: Generation,
    num_recorded: int,
    targets_vary: bool = False,
) -> None:
    """Raise `InvalidRequest` unless it has a number of tokens for each choice that can be met.

    What is not on record (of several choices: nothing) is computed again, and must come out as the
    client has it; where targets' bits depend on the width of a pass nothing need do so.
    """
    request, limit = generation.request, generation.max_tokens
    if len(resume_from) != request.n:
        raise InvalidRequest(
            f"resume_from: has {len(resume_from)} numbers of tokens; expected {request.n}, one "
            "for each choice",
            "resume_from",
        )
    rule = request.speculation.acceptance_rule
    doubt = ""
    if targets_vary:
        doubt = "a target whose results depend on the width of a pass"
    elif rule != "coupled" and request.temperature != 0:
        doubt = f"the rule {rule!r}"
    for number in resume_from:
        if not 0 <= number <= limit:
            raise InvalidRequest(
                f"resume_from: {number} is not a number of tokens of this answer; expected 0 to "
                f"{limit}",
                "resume_from",
            )
        num_known = num_recorded if request.n == 1 else 0
        if number > num_known and doubt:
            raise InvalidRequest(
                f"resume_from: {num_known} of {number} tokens are on record, and {doubt} "
                f"would not make the others again; expected up to {num_known}",
                "resume_from",
            )


def check_same(request: GenerationRequest, recorded: Generation) -> None:
    """Raise `InvalidRequest` unless a request, its prompt in tokens, is the one on record."""
    rule = recorded.request.speculation.acceptance_rule
    expected = replace(recorded.request, prompt=recorded.prompt_token_ids)
    for name in (item.name for item in fields(request)):
        if getattr(with_rule(request, rule), name) != getattr(expected, name):
            raise InvalidRequest(
                f"{name}: differs from that of the request {request.request_id!r} on record; "
                "expected the same request again",
                name,
            )


def sequence_settings(
    generation: Generation, tokenizer: Tokenizer, choice: int = 0
) -> SequenceSettings:
    """The settings of the sequence of one choice."""
    request = generation.request
    eos_token_ids = () if request.ignore_eos else tokenizer.eos_token_ids
    num_prompt = len(generation.prompt_token_ids)
    return SequenceSettings(
        max_length=num_prompt + generation.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=generation.seed,
        choice=choice,
        logit_bias=request.logit_bias,
        stop_token_ids=tuple(dict.fromkeys((*eos_token_ids, *request.stop_token_ids))),
        min_length=num_prompt + request.min_tokens,
        prompt_length=num_prompt,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        num_logprobs=request.num_logprobs,
        acceptance_rule=AcceptanceRule[request.speculation.acceptance_rule.upper()],
        grammar=generation.grammar,
        cache_salt=request.tenant,
    )
