"""What spans, their attributes and events are called, and what they mean.

`docs/observability.md` has these as tables. Names of others are as in OpenTelemetry's semantic
conventions 1.44 and those for generative AI; for speculative decoding there are none yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

CHAT = "chat"
TEXT_COMPLETION = "text_completion"
ADMISSION = "paceline.admission"
SESSION_LOAD = "paceline.session.load"
QUEUE = "paceline.queue"
PREFILL = "paceline.prefill"
ROUND = "paceline.round"
FURTHER_ROUNDS = "paceline.further_rounds"
PROPOSE = "paceline.v1.DraftService/Propose"
VERIFY = "paceline.v1.TargetService/Verify"
WORKER_QUEUE = "paceline.worker.queue"
WORKER_COMPUTE = "paceline.worker.compute"

REQUEST_CANCELLED = "paceline.request.cancelled"
NUMERICS_CHANGED = "paceline.numerics_changed"
WORKER_LOST = "paceline.worker.lost"
RESEND = "paceline.resend"
PREEMPTION = "paceline.preemption"
DRAFT_FAILED = "paceline.draft.failed"

ATTRIBUTES: Mapping[str, str] = {
    "gen_ai.operation.name": "`chat` or `text_completion`",
    "gen_ai.provider.name": "`paceline`",
    "gen_ai.request.model": "the model that is served",
    "gen_ai.response.model": "the same",
    "gen_ai.response.id": "the id of the answer, which is that of its record",
    "gen_ai.conversation.id": "the session, if the request names one",
    "gen_ai.output.type": "`json` where the answer has to meet a schema, else `text`",
    "gen_ai.request.choice.count": "`n`, unless it is 1",
    "gen_ai.request.seed": "if the request names one, below 2⁶³",
    "gen_ai.request.stream": "whether the answer is streamed",
    "gen_ai.request.max_tokens": "the limit in force",
    "gen_ai.request.temperature": "as in the request, and so the next ones",
    "gen_ai.request.top_p": "",
    "gen_ai.request.top_k": "unless it is 0",
    "gen_ai.request.frequency_penalty": "unless it is 0",
    "gen_ai.request.presence_penalty": "unless it is 0",
    "gen_ai.response.finish_reasons": "of each choice, in the order in which they ended",
    "gen_ai.response.time_to_first_chunk": "seconds from the request to its first token",
    "gen_ai.usage.input_tokens": "tokens of the prompt",
    "gen_ai.usage.output_tokens": "tokens of all choices",
    "gen_ai.usage.cache_read.input_tokens": "of the prompts of all choices, tokens whose KV was "
    "found on the target",
    "openai.response.system_fingerprint": "what the answer was computed with",
    "http.request.method": "",
    "http.route": "",
    "http.response.status_code": "499: the client left before there was an answer",
    "url.path": "",
    "url.scheme": "",
    "network.protocol.version": "",
    "user_agent.original": "",
    "server.address": "on a request the address that it came to, on a client span the worker's",
    "server.port": "",
    "rpc.system.name": "`grpc`",
    "rpc.method": "",
    "rpc.response.status_code": "`OK`, or the name of another status",
    "error.type": "what failed, in a word",
    "paceline.request.id": "the `x-request-id` that the client gave or got",
    "paceline.request.resumed": "the answer goes on behind what the client has of it",
    "paceline.choice.index": "which of the request's choices, from 0",
    "paceline.sequence.id": "the choice as workers know it; their log lines have it too",
    "paceline.sequence.position": "tokens before the first one of the round, prompt included",
    "paceline.round.index": "from 0; 0 is the prefill",
    "paceline.round.count": "rounds in this span",
    "paceline.round.passes": "passes of the target; several where it went on alone",
    "paceline.round.tokens": "tokens committed",
    "paceline.spec.rounds": "passes of the target that checked drafts",
    "paceline.spec.requested": "drafts asked for",
    "paceline.spec.proposed": "drafts that came",
    "paceline.spec.drafted": "drafts that the target checked",
    "paceline.spec.accepted": "drafts accepted",
    "paceline.spec.predicted": "the drafts are from the request's prediction, no draft was asked",
    "paceline.spec.mean_acceptance_length": "1 + accepted / rounds with drafts",
    "paceline.spec.target_passes": "passes of the target",
    "paceline.spec.failure": "why drafts did not come or were of no use (`timeout`, `lost`, …)",
    "paceline.draft_ms": "from asking the draft to its answer",
    "paceline.draft.queue_ms": "of that, waiting in the draft",
    "paceline.draft.compute_ms": "of that, computing",
    "paceline.verify_ms": "from asking the target to its last result",
    "paceline.target.queue_ms": "of that, waiting in the target",
    "paceline.target.compute_ms": "of that, computing",
    "paceline.sent_bytes": "of the messages of the round to workers",
    "paceline.received_bytes": "of the messages of the round from workers",
    "paceline.draft.worker": "address of the draft",
    "paceline.target.worker": "address of the target",
    "paceline.worker.role": "`draft` or `target`",
    "paceline.held": "tokens that the worker says it holds: it is sent the rest again",
    "paceline.recomputed_tokens": "tokens computed again, since their KV had been given to others",
    "paceline.compute_ms": "the passes alone, where there were several",
    "paceline.pass.rows": "tokens of all sequences in the last pass",
    "paceline.pass.sequences": "sequences in the last pass",
    "paceline.pass.steps": "steps of the drafter's model",
    "paceline.worker.waiting": "other rounds that wait when this one is answered",
    "paceline.worker.kv_used": "tokens of KV room in use then",
    "paceline.worker.kv_capacity": "tokens of KV room in all",
    "paceline.superseded": "the round was given up before it was answered",
}

_ROUND = (
    "paceline.choice.index",
    "paceline.sequence.id",
    "paceline.sequence.position",
    "paceline.round.passes",
    "paceline.round.tokens",
    "paceline.spec.rounds",
    "paceline.spec.requested",
    "paceline.spec.proposed",
    "paceline.spec.drafted",
    "paceline.spec.accepted",
    "paceline.spec.predicted",
    "paceline.spec.failure",
    "paceline.draft_ms",
    "paceline.draft.queue_ms",
    "paceline.draft.compute_ms",
    "paceline.verify_ms",
    "paceline.target.queue_ms",
    "paceline.target.compute_ms",
    "paceline.draft.worker",
    "paceline.target.worker",
)
_BYTES = ("paceline.sent_bytes", "paceline.received_bytes")
_CALL = (
    *("rpc.system.name", "rpc.method", "server.address", "server.port", "error.type"),
    *_BYTES,
)
_REQUEST = tuple(
    name
    for name in ATTRIBUTES
    if name.startswith(("gen_ai.", "openai.", "http.", "url.", "network.", "user_agent.", "rpc."))
)


@dataclass(frozen=True, slots=True)
class SpanDoc:
    """One kind of span."""

    name: str
    kind: str
    service: str
    meaning: str
    attributes: tuple[str, ...]


SPANS = (
    SpanDoc(
        f"{CHAT} <model>, {TEXT_COMPLETION} <model>",
        "server",
        "coordinator",
        "A request, from its first byte to the last one of its answer.",
        (
            *_REQUEST,
            *("server.address", "server.port", "error.type"),
            *("paceline.request.id", "paceline.request.resumed", "paceline.spec.rounds"),
            *("paceline.spec.proposed", "paceline.spec.drafted", "paceline.spec.accepted"),
            *("paceline.spec.mean_acceptance_length", "paceline.spec.target_passes"),
        ),
    ),
    SpanDoc(
        ADMISSION,
        "internal",
        "coordinator",
        "Checking, making tokens of the text, and opening the record.",
        ("error.type",),
    ),
    SpanDoc(
        SESSION_LOAD,
        "internal",
        "coordinator",
        "Reading the record of a request that is resumed, and taking it over.",
        ("error.type",),
    ),
    SpanDoc(
        QUEUE,
        "internal",
        "coordinator",
        "A choice waits because as many run as may.",
        ("paceline.choice.index", "error.type"),
    ),
    SpanDoc(
        PREFILL,
        "internal",
        "coordinator",
        "The first round of a choice: the target reads the prompt, and the draft too.",
        (*_ROUND, *_BYTES, "paceline.round.index"),
    ),
    SpanDoc(
        ROUND,
        "internal",
        "coordinator",
        "A further round: propose, verify, commit.",
        (*_ROUND, *_BYTES, "paceline.round.index"),
    ),
    SpanDoc(
        FURTHER_ROUNDS,
        "internal",
        "coordinator",
        "All rounds of a choice behind those that have spans of their own, in one.",
        (*_ROUND, "paceline.round.index", "paceline.round.count"),
    ),
    SpanDoc(PROPOSE, "client", "coordinator", "A round at a draft.", _CALL),
    SpanDoc(VERIFY, "client", "coordinator", "A round at a target.", _CALL),
    SpanDoc(
        f"{PROPOSE}, {VERIFY}",
        "server",
        "draft, target",
        "The round inside the worker, from the message to the answer.",
        (
            *("rpc.system.name", "rpc.method", "error.type", "paceline.sequence.id"),
            *("paceline.worker.waiting", "paceline.worker.kv_used", "paceline.worker.kv_capacity"),
            "paceline.superseded",
        ),
    ),
    SpanDoc(
        WORKER_QUEUE,
        "internal",
        "draft, target",
        "Until the pass begins: behind another pass, for room, or for others to come along.",
        (),
    ),
    SpanDoc(
        WORKER_COMPUTE,
        "internal",
        "draft, target",
        "The passes that the round took part in, as the device's thread measured them.",
        (
            *("paceline.round.passes", "paceline.compute_ms"),
            *("paceline.pass.rows", "paceline.pass.sequences", "paceline.pass.steps"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class EventDoc:
    """Something that happens in the course of a span."""

    name: str
    meaning: str
    attributes: tuple[str, ...]


EVENTS = (
    EventDoc(REQUEST_CANCELLED, "The client went away.", ()),
    EventDoc(
        WORKER_LOST,
        "A target was lost and the choice goes on at another one, or at the same one again.",
        ("server.address", "server.port"),
    ),
    EventDoc(
        RESEND,
        "A worker lacks tokens of the sequence and is sent them again.",
        ("paceline.worker.role", "paceline.held"),
    ),
    EventDoc(
        PREEMPTION,
        "The target had given the KV of the sequence to others and computed it again.",
        ("paceline.recomputed_tokens",),
    ),
    EventDoc(NUMERICS_CHANGED, "The choice moved to a target of unequal arithmetic.", ()),
    EventDoc(DRAFT_FAILED, "The round's drafts did not come or were of no use.", ("error.type",)),
)
