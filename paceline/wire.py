"""Between plain rounds (`paceline.rounds`) and protocol messages (`paceline.v1`)."""

from paceline.rounds import (
    DraftFault,
    PassCost,
    ProposeResult,
    ProposeRound,
    RoundError,
    RoundErrorReason,
    RoundTiming,
    VerifyResult,
    VerifyRound,
    WorkerInfo,
    WorkerLoad,
)
from paceline.sequence_wire import (
    drafts_from_wire,
    drafts_to_wire,
    features_from_wire,
    features_to_wire,
    logprobs_from_wire,
    logprobs_to_wire,
    settings_from_wire,
    settings_to_wire,
    span_from_wire,
    span_to_wire,
)
from paceline.v1 import draft_pb2, target_pb2, tokens_pb2


def propose_round_to_wire(round: ProposeRound) -> draft_pb2.ProposeRound:
    """A round as a message."""
    return draft_pb2.ProposeRound(
        sequence_id=round.sequence_id,
        round=round.round,
        span=span_to_wire(round.span),
        num_speculative_tokens=round.num_speculative_tokens,
        settings=settings_to_wire(round.settings),
        traceparent=round.traceparent,
        tracestate=round.tracestate,
        features=features_to_wire(round.features),
        min_confidence=round.min_confidence,
        min_step_confidence=round.min_step_confidence,
        max_steps=round.max_steps,
    )


def propose_round_from_wire(message: draft_pb2.ProposeRound) -> ProposeRound:
    """A message as a round."""
    return ProposeRound(
        sequence_id=message.sequence_id,
        round=message.round,
        span=span_from_wire(message.span),
        num_speculative_tokens=message.num_speculative_tokens,
        settings=settings_from_wire(message),
        traceparent=message.traceparent,
        tracestate=message.tracestate,
        features=features_from_wire(message),
        min_confidence=message.min_confidence,
        min_step_confidence=message.min_step_confidence,
        max_steps=message.max_steps,
    )


def propose_result_to_wire(result: ProposeResult) -> draft_pb2.ProposeResult:
    """A result as a message."""
    return draft_pb2.ProposeResult(
        sequence_id=result.sequence_id,
        round=result.round,
        held=result.held,
        drafts=drafts_to_wire(result.drafts),
        timing=_timing_to_wire(result.timing),
        error=_error_to_wire(result.error),
        features_from=result.features_from,
        fault=draft_pb2.DraftFault.Name(result.fault.value if result.fault else 0),
    )


def propose_result_from_wire(message: draft_pb2.ProposeResult) -> ProposeResult:
    """A message as a result."""
    return ProposeResult(
        sequence_id=message.sequence_id,
        round=message.round,
        held=message.held if message.HasField("held") else None,
        drafts=drafts_from_wire(message.drafts),
        timing=_timing_from_wire(message.timing),
        error=_error_from_wire(message.error) if message.HasField("error") else None,
        features_from=message.features_from if message.HasField("features_from") else None,
        fault=_fault_from_wire(message.fault),
    )


def verify_round_to_wire(round: VerifyRound) -> target_pb2.VerifyRound:
    """A round as a message."""
    return target_pb2.VerifyRound(
        sequence_id=round.sequence_id,
        round=round.round,
        span=span_to_wire(round.span),
        drafts=drafts_to_wire(round.drafts) if round.drafts.token_ids else None,
        max_new_tokens=round.max_new_tokens,
        settings=settings_to_wire(round.settings),
        traceparent=round.traceparent,
        tracestate=round.tracestate,
        score_from=round.score_from,
        features_from=round.features_from,
    )


def verify_round_from_wire(message: target_pb2.VerifyRound) -> VerifyRound:
    """A message as a round."""
    return VerifyRound(
        sequence_id=message.sequence_id,
        round=message.round,
        span=span_from_wire(message.span),
        drafts=drafts_from_wire(message.drafts),
        max_new_tokens=message.max_new_tokens or 1,
        settings=settings_from_wire(message),
        traceparent=message.traceparent,
        tracestate=message.tracestate,
        score_from=message.score_from if message.HasField("score_from") else None,
        features_from=message.features_from if message.HasField("features_from") else None,
    )


def verify_result_to_wire(result: VerifyResult) -> target_pb2.VerifyResult:
    """A result as a message."""
    return target_pb2.VerifyResult(
        sequence_id=result.sequence_id,
        round=result.round,
        held=result.held,
        start=result.start,
        token_ids=result.token_ids,
        num_draft_tokens=result.num_draft_tokens,
        num_accepted_tokens=result.num_accepted_tokens,
        last=result.last,
        timing=_timing_to_wire(result.timing),
        error=_error_to_wire(result.error),
        logprobs=map(logprobs_to_wire, result.logprobs),
        features=features_to_wire(result.features),
    )


def verify_result_from_wire(message: target_pb2.VerifyResult) -> VerifyResult:
    """A message as a result."""
    return VerifyResult(
        sequence_id=message.sequence_id,
        round=message.round,
        held=message.held if message.HasField("held") else None,
        start=message.start,
        token_ids=tuple(message.token_ids),
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        last=message.last,
        timing=_timing_from_wire(message.timing),
        error=_error_from_wire(message.error) if message.HasField("error") else None,
        logprobs=tuple(map(logprobs_from_wire, message.logprobs)),
        features=features_from_wire(message),
    )


def load_to_wire(load: WorkerLoad) -> tokens_pb2.WorkerLoad:
    """A worker's state as a message."""
    return tokens_pb2.WorkerLoad(
        num_sequences=load.num_sequences,
        num_waiting=load.num_waiting,
        kv_used=load.kv_used,
        kv_capacity=load.kv_capacity,
        num_preemptions=load.num_preemptions,
        draining=load.draining,
    )


def load_from_wire(message: tokens_pb2.WorkerLoad) -> WorkerLoad:
    """A message as a worker's state."""
    return WorkerLoad(
        num_sequences=message.num_sequences,
        num_waiting=message.num_waiting,
        kv_used=message.kv_used,
        kv_capacity=message.kv_capacity,
        num_preemptions=message.num_preemptions,
        draining=message.draining,
    )


def info_to_wire(info: WorkerInfo) -> tokens_pb2.WorkerInfo:
    """A worker's description as a message."""
    return tokens_pb2.WorkerInfo(
        protocol_major=info.protocol_major,
        protocol_minor=info.protocol_minor,
        version=info.version,
        model=info.model,
        numerics=info.numerics,
        tokenizer_digest=info.tokenizer_digest,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        max_speculative_tokens=info.max_speculative_tokens,
        drafter=info.drafter,
        pass_costs=[
            tokens_pb2.PassCost(rows=c.rows, context=c.context, milliseconds=c.milliseconds)
            for c in info.pass_costs
        ],
        instance_id=info.instance_id,
        feature_layers=info.feature_layers,
        feature_size=info.feature_size,
        feature_projection=info.feature_projection,
        num_parameters=info.num_parameters,
        started_at_ms=info.started_at_ms,
        varies_with_width=info.varies_with_width,
    )


def info_from_wire(message: tokens_pb2.WorkerInfo) -> WorkerInfo:
    """A message as a worker's description."""
    return WorkerInfo(
        instance_id=message.instance_id,
        version=message.version,
        model=message.model,
        numerics=message.numerics,
        tokenizer_digest=message.tokenizer_digest,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        max_speculative_tokens=message.max_speculative_tokens,
        drafter=message.drafter,
        pass_costs=tuple(PassCost(c.rows, c.context, c.milliseconds) for c in message.pass_costs),
        feature_layers=tuple(message.feature_layers),
        feature_size=message.feature_size,
        feature_projection=message.feature_projection,
        num_parameters=message.num_parameters,
        started_at_ms=message.started_at_ms,
        varies_with_width=message.varies_with_width,
        protocol_major=message.protocol_major,
        protocol_minor=message.protocol_minor,
    )


def _timing_to_wire(timing: RoundTiming) -> tokens_pb2.RoundTiming:
    return tokens_pb2.RoundTiming(
        queue_us=timing.queue_us,
        compute_us=timing.compute_us,
        pass_rows=timing.pass_rows,
        pass_sequences=timing.pass_sequences,
        num_steps=timing.num_steps,
        num_rows=timing.num_rows,
    )


def _timing_from_wire(message: tokens_pb2.RoundTiming) -> RoundTiming:
    return RoundTiming(
        queue_us=message.queue_us,
        compute_us=message.compute_us,
        pass_rows=message.pass_rows,
        pass_sequences=message.pass_sequences,
        num_steps=message.num_steps,
        num_rows=message.num_rows,
    )


def _fault_from_wire(value: int) -> DraftFault | None:
    return DraftFault(value) if value in {fault.value for fault in DraftFault} else None


def _error_to_wire(error: RoundError | None) -> tokens_pb2.RoundError | None:
    if error is None:
        return None
    reason = tokens_pb2.RoundErrorReason.Name(error.reason.value)
    return tokens_pb2.RoundError(reason=reason, message=error.message)


def _error_from_wire(message: tokens_pb2.RoundError) -> RoundError:
    known = {reason.value for reason in RoundErrorReason}
    reason = message.reason if message.reason in known else RoundErrorReason.INTERNAL.value
    return RoundError(RoundErrorReason(reason), message.message)
