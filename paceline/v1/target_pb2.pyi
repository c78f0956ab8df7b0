from paceline.v1 import tokens_pb2 as _tokens_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TargetServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TargetServiceGetInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _tokens_pb2.WorkerInfo
    def __init__(self, info: _Optional[_Union[_tokens_pb2.WorkerInfo, _Mapping]] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("name", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class VerifyRound(_message.Message):
    __slots__ = ("sequence_id", "round", "span", "drafts", "max_new_tokens", "settings", "traceparent", "score_from", "features_from", "tracestate")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FROM_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FROM_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    round: int
    span: _tokens_pb2.TokenSpan
    drafts: _tokens_pb2.Drafts
    max_new_tokens: int
    settings: _tokens_pb2.SequenceSettings
    traceparent: str
    score_from: int
    features_from: int
    tracestate: str
    def __init__(self, sequence_id: _Optional[str] = ..., round: _Optional[int] = ..., span: _Optional[_Union[_tokens_pb2.TokenSpan, _Mapping]] = ..., drafts: _Optional[_Union[_tokens_pb2.Drafts, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., settings: _Optional[_Union[_tokens_pb2.SequenceSettings, _Mapping]] = ..., traceparent: _Optional[str] = ..., score_from: _Optional[int] = ..., features_from: _Optional[int] = ..., tracestate: _Optional[str] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("rounds", "closed_sequence_ids")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[VerifyRound]
    closed_sequence_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rounds: _Optional[_Iterable[_Union[VerifyRound, _Mapping]]] = ..., closed_sequence_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class VerifyResult(_message.Message):
    __slots__ = ("sequence_id", "round", "held", "start", "token_ids", "num_draft_tokens", "num_accepted_tokens", "last", "timing", "logprobs", "features", "error")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    round: int
    held: int
    start: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: int
    num_accepted_tokens: int
    last: bool
    timing: _tokens_pb2.RoundTiming
    logprobs: _containers.RepeatedCompositeFieldContainer[_tokens_pb2.TokenLogprobs]
    features: _tokens_pb2.Features
    error: _tokens_pb2.RoundError
    def __init__(self, sequence_id: _Optional[str] = ..., round: _Optional[int] = ..., held: _Optional[int] = ..., start: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., last: _Optional[bool] = ..., timing: _Optional[_Union[_tokens_pb2.RoundTiming, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[_tokens_pb2.TokenLogprobs, _Mapping]]] = ..., features: _Optional[_Union[_tokens_pb2.Features, _Mapping]] = ..., error: _Optional[_Union[_tokens_pb2.RoundError, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("results", "load")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[VerifyResult]
    load: _tokens_pb2.WorkerLoad
    def __init__(self, results: _Optional[_Iterable[_Union[VerifyResult, _Mapping]]] = ..., load: _Optional[_Union[_tokens_pb2.WorkerLoad, _Mapping]] = ...) -> None: ...
