from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcceptanceRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTANCE_RULE_UNSPECIFIED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_COUPLED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_REJECTION: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_BLOCK: _ClassVar[AcceptanceRule]

class RoundErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUND_ERROR_REASON_UNSPECIFIED: _ClassVar[RoundErrorReason]
    ROUND_ERROR_REASON_INVALID_ARGUMENT: _ClassVar[RoundErrorReason]
    ROUND_ERROR_REASON_TOO_LONG: _ClassVar[RoundErrorReason]
    ROUND_ERROR_REASON_OVERLOADED: _ClassVar[RoundErrorReason]
    ROUND_ERROR_REASON_DRAINING: _ClassVar[RoundErrorReason]
    ROUND_ERROR_REASON_INTERNAL: _ClassVar[RoundErrorReason]
ACCEPTANCE_RULE_UNSPECIFIED: AcceptanceRule
ACCEPTANCE_RULE_COUPLED: AcceptanceRule
ACCEPTANCE_RULE_REJECTION: AcceptanceRule
ACCEPTANCE_RULE_BLOCK: AcceptanceRule
ROUND_ERROR_REASON_UNSPECIFIED: RoundErrorReason
ROUND_ERROR_REASON_INVALID_ARGUMENT: RoundErrorReason
ROUND_ERROR_REASON_TOO_LONG: RoundErrorReason
ROUND_ERROR_REASON_OVERLOADED: RoundErrorReason
ROUND_ERROR_REASON_DRAINING: RoundErrorReason
ROUND_ERROR_REASON_INTERNAL: RoundErrorReason

class TokenSpan(_message.Message):
    __slots__ = ("start", "prefix_hash", "token_ids")
    START_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    start: int
    prefix_hash: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start: _Optional[int] = ..., prefix_hash: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class SequenceSettings(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "choice", "logit_bias", "stop_token_ids", "min_length", "max_length", "cache_salt", "prompt_length", "presence_penalty", "frequency_penalty", "repetition_penalty", "acceptance_rule", "num_logprobs", "grammar")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RULE_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    min_length: int
    max_length: int
    cache_salt: str
    prompt_length: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    acceptance_rule: AcceptanceRule
    num_logprobs: int
    grammar: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., choice: _Optional[int] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., min_length: _Optional[int] = ..., max_length: _Optional[int] = ..., cache_salt: _Optional[str] = ..., prompt_length: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., acceptance_rule: _Optional[_Union[AcceptanceRule, str]] = ..., num_logprobs: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class Support(_message.Message):
    __slots__ = ("token_ids", "weights")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class Drafts(_message.Message):
    __slots__ = ("token_ids", "parents", "supports", "confidence_percents")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_PERCENTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    supports: _containers.RepeatedCompositeFieldContainer[Support]
    confidence_percents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., supports: _Optional[_Iterable[_Union[Support, _Mapping]]] = ..., confidence_percents: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Features(_message.Message):
    __slots__ = ("start", "num_rows", "data")
    START_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    start: int
    num_rows: int
    data: bytes
    def __init__(self, start: _Optional[int] = ..., num_rows: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RoundError(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: RoundErrorReason
    message: str
    def __init__(self, reason: _Optional[_Union[RoundErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class RoundTiming(_message.Message):
    __slots__ = ("queue_us", "compute_us", "pass_rows", "pass_sequences", "num_steps", "num_rows")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    PASS_ROWS_FIELD_NUMBER: _ClassVar[int]
    PASS_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    compute_us: int
    pass_rows: int
    pass_sequences: int
    num_steps: int
    num_rows: int
    def __init__(self, queue_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., pass_rows: _Optional[int] = ..., pass_sequences: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_rows: _Optional[int] = ...) -> None: ...

class WorkerLoad(_message.Message):
    __slots__ = ("num_sequences", "num_waiting", "kv_used", "kv_capacity", "num_preemptions", "draining")
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USED_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    num_sequences: int
    num_waiting: int
    kv_used: int
    kv_capacity: int
    num_preemptions: int
    draining: bool
    def __init__(self, num_sequences: _Optional[int] = ..., num_waiting: _Optional[int] = ..., kv_used: _Optional[int] = ..., kv_capacity: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class PassCost(_message.Message):
    __slots__ = ("rows", "context", "milliseconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    context: int
    milliseconds: float
    def __init__(self, rows: _Optional[int] = ..., context: _Optional[int] = ..., milliseconds: _Optional[float] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("protocol_major", "protocol_minor", "version", "model", "numerics", "tokenizer_digest", "vocab_size", "max_model_len", "max_speculative_tokens", "drafter", "pass_costs", "instance_id", "feature_layers", "feature_size", "num_parameters", "feature_projection", "started_at_ms", "varies_with_width")
    PROTOCOL_MAJOR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    PASS_COSTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_PROJECTION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    VARIES_WITH_WIDTH_FIELD_NUMBER: _ClassVar[int]
    protocol_major: int
    protocol_minor: int
    version: str
    model: str
    numerics: str
    tokenizer_digest: str
    vocab_size: int
    max_model_len: int
    max_speculative_tokens: int
    drafter: str
    pass_costs: _containers.RepeatedCompositeFieldContainer[PassCost]
    instance_id: str
    feature_layers: _containers.RepeatedScalarFieldContainer[int]
    feature_size: int
    num_parameters: int
    feature_projection: str
    started_at_ms: int
    varies_with_width: bool
    def __init__(self, protocol_major: _Optional[int] = ..., protocol_minor: _Optional[int] = ..., version: _Optional[str] = ..., model: _Optional[str] = ..., numerics: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_speculative_tokens: _Optional[int] = ..., drafter: _Optional[str] = ..., pass_costs: _Optional[_Iterable[_Union[PassCost, _Mapping]]] = ..., instance_id: _Optional[str] = ..., feature_layers: _Optional[_Iterable[int]] = ..., feature_size: _Optional[int] = ..., num_parameters: _Optional[int] = ..., feature_projection: _Optional[str] = ..., started_at_ms: _Optional[int] = ..., varies_with_width: _Optional[bool] = ...) -> None: ...
