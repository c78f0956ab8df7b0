from paceline.v1 import tokens_pb2 as _tokens_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftFault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_FAULT_UNSPECIFIED: _ClassVar[DraftFault]
    DRAFT_FAULT_NOT_A_NUMBER: _ClassVar[DraftFault]
    DRAFT_FAULT_NO_FEATURES: _ClassVar[DraftFault]
DRAFT_FAULT_UNSPECIFIED: DraftFault
DRAFT_FAULT_NOT_A_NUMBER: DraftFault
DRAFT_FAULT_NO_FEATURES: DraftFault

class DraftServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftServiceGetInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _tokens_pb2.WorkerInfo
    def __init__(self, info: _Optional[_Union[_tokens_pb2.WorkerInfo, _Mapping]] = ...) -> None: ...

class ProposeRound(_message.Message):
    __slots__ = ("sequence_id", "round", "span", "num_speculative_tokens", "settings", "traceparent", "features", "min_confidence", "min_step_confidence", "max_steps", "tracestate")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MIN_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    MIN_STEP_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    round: int
    span: _tokens_pb2.TokenSpan
    num_speculative_tokens: int
    settings: _tokens_pb2.SequenceSettings
    traceparent: str
    features: _tokens_pb2.Features
    min_confidence: float
    min_step_confidence: float
    max_steps: int
    tracestate: str
    def __init__(self, sequence_id: _Optional[str] = ..., round: _Optional[int] = ..., span: _Optional[_Union[_tokens_pb2.TokenSpan, _Mapping]] = ..., num_speculative_tokens: _Optional[int] = ..., settings: _Optional[_Union[_tokens_pb2.SequenceSettings, _Mapping]] = ..., traceparent: _Optional[str] = ..., features: _Optional[_Union[_tokens_pb2.Features, _Mapping]] = ..., min_confidence: _Optional[float] = ..., min_step_confidence: _Optional[float] = ..., max_steps: _Optional[int] = ..., tracestate: _Optional[str] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("rounds", "closed_sequence_ids")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[ProposeRound]
    closed_sequence_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rounds: _Optional[_Iterable[_Union[ProposeRound, _Mapping]]] = ..., closed_sequence_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ProposeResult(_message.Message):
    __slots__ = ("sequence_id", "round", "held", "drafts", "timing", "features_from", "fault", "error")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FROM_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    round: int
    held: int
    drafts: _tokens_pb2.Drafts
    timing: _tokens_pb2.RoundTiming
    features_from: int
    fault: DraftFault
    error: _tokens_pb2.RoundError
    def __init__(self, sequence_id: _Optional[str] = ..., round: _Optional[int] = ..., held: _Optional[int] = ..., drafts: _Optional[_Union[_tokens_pb2.Drafts, _Mapping]] = ..., timing: _Optional[_Union[_tokens_pb2.RoundTiming, _Mapping]] = ..., features_from: _Optional[int] = ..., fault: _Optional[_Union[DraftFault, str]] = ..., error: _Optional[_Union[_tokens_pb2.RoundError, _Mapping]] = ...) -> None: ...

class ProposeResponse(_message.Message):
    __slots__ = ("results", "load")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ProposeResult]
    load: _tokens_pb2.WorkerLoad
    def __init__(self, results: _Optional[_Iterable[_Union[ProposeResult, _Mapping]]] = ..., load: _Optional[_Union[_tokens_pb2.WorkerLoad, _Mapping]] = ...) -> None: ...
