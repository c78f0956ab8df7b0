"""Between plain sequences, settings and drafts and the messages of tokens.proto."""

from paceline.rounds import (
    NO_DRAFTS,
    AcceptanceRule,
    Drafts,
    Features,
    SequenceSettings,
    Support,
    TokenLogprobs,
    TokenSpan,
)
from paceline.v1 import draft_pb2, target_pb2, tokens_pb2


def span_to_wire(span: TokenSpan) -> tokens_pb2.TokenSpan:
    """A span as a message."""
    return tokens_pb2.TokenSpan(
        start=span.start, prefix_hash=span.prefix_hash, token_ids=span.token_ids
    )


def span_from_wire(message: tokens_pb2.TokenSpan) -> TokenSpan:
    """A message as a span."""
    return TokenSpan(message.start, message.prefix_hash, message.token_ids)


def settings_to_wire(settings: SequenceSettings | None) -> tokens_pb2.SequenceSettings | None:
    """Settings as a message; None stays unset."""
    if settings is None:
        return None
    return tokens_pb2.SequenceSettings(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        seed=settings.seed,
        choice=settings.choice,
        logit_bias=[
            tokens_pb2.LogitBias(token_id=token_id, bias=bias)
            for token_id, bias in settings.logit_bias
        ],
        stop_token_ids=settings.stop_token_ids,
        min_length=settings.min_length,
        max_length=settings.max_length,
        cache_salt=settings.cache_salt,
        prompt_length=settings.prompt_length,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        repetition_penalty=settings.repetition_penalty,
        acceptance_rule=tokens_pb2.AcceptanceRule.Name(settings.acceptance_rule.value),
        num_logprobs=settings.num_logprobs,
        grammar=settings.grammar,
    )


def settings_from_wire(
    message: "target_pb2.VerifyRound | draft_pb2.ProposeRound",
) -> SequenceSettings | None:
    """The settings of a round; None when it has none."""
    if not message.HasField("settings"):
        return None
    settings = message.settings
    return SequenceSettings(
        max_length=settings.max_length,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p or 1.0,
        min_p=settings.min_p,
        seed=settings.seed,
        choice=settings.choice,
        logit_bias=tuple((bias.token_id, bias.bias) for bias in settings.logit_bias),
        stop_token_ids=tuple(settings.stop_token_ids),
        min_length=settings.min_length,
        cache_salt=settings.cache_salt,
        prompt_length=settings.prompt_length,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        repetition_penalty=settings.repetition_penalty or 1.0,
        acceptance_rule=_rule_from_wire(settings.acceptance_rule),
        num_logprobs=settings.num_logprobs if settings.HasField("num_logprobs") else None,
        grammar=settings.grammar,
    )


def _rule_from_wire(value: int) -> AcceptanceRule:
    known = {rule.value for rule in AcceptanceRule}
    # Of a rule that is newer than this worker: the coupled rule is right whatever the drafts are.
    return AcceptanceRule(value) if value in known else AcceptanceRule.COUPLED


def drafts_to_wire(drafts: Drafts) -> tokens_pb2.Drafts:
    """Drafts as a message."""
    supports = [
        tokens_pb2.Support(token_ids=support.token_ids, weights=support.weights)
        for support in drafts.supports
    ]
    return tokens_pb2.Drafts(
        token_ids=drafts.token_ids,
        parents=drafts.parents,
        supports=supports,
        confidence_percents=[round(100 * confidence) for confidence in drafts.confidences],
    )


def drafts_from_wire(message: tokens_pb2.Drafts) -> Drafts:
    """A message as drafts."""
    if not message.token_ids:
        return NO_DRAFTS
    supports = tuple(Support(tuple(s.token_ids), tuple(s.weights)) for s in message.supports)
    confidences = tuple(percent / 100 for percent in message.confidence_percents)
    return Drafts(tuple(message.token_ids), tuple(message.parents), supports, confidences)


def features_to_wire(features: Features | None) -> tokens_pb2.Features | None:
    """Features as a message; None stays unset."""
    if features is None:
        return None
    return tokens_pb2.Features(start=features.start, num_rows=features.num_rows, data=features.data)


def features_from_wire(
    message: "target_pb2.VerifyResult | draft_pb2.ProposeRound",
) -> Features | None:
    """The features of a round or a result; None when it has none."""
    if not message.HasField("features"):
        return None
    features = message.features
    return Features(features.start, features.num_rows, features.data)


def logprobs_to_wire(logprobs: TokenLogprobs) -> tokens_pb2.TokenLogprobs:
    """The log-probabilities of one token as a message."""
    return tokens_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top_token_ids=logprobs.top_token_ids,
        top_logprobs=logprobs.top_logprobs,
    )


def logprobs_from_wire(message: tokens_pb2.TokenLogprobs) -> TokenLogprobs:
    """A message as the log-probabilities of one token."""
    return TokenLogprobs(message.logprob, tuple(message.top_token_ids), tuple(message.top_logprobs))
