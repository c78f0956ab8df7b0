"""One span that is recorded, and which one that is here and now.

What is not recorded has no `Span`: the variable is empty, and nothing is computed for it. A span's
times may be given, where they were measured elsewhere or before. Loads no `opentelemetry`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import time_ns
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span as OtelSpan

    from paceline.telemetry.recorder import Recorder

Kind = Literal["internal", "client", "server"]
Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class Span:
    """A span that will be exported once it has ended."""

    __slots__ = ("_context", "_recorder", "_span", "name", "started_ns")

    def __init__(self, recorder: "Recorder", span: "OtelSpan", name: str, started_ns: int) -> None:
        self.name = name
        """What it is called."""
        self._recorder = recorder
        self._span = span
        self._context: Context | None = None
        self.started_ns = started_ns
        """Unix time in nanoseconds."""

    def child(
        self,
        name: str,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        started_ns: int | None = None,
    ) -> "Span":
        """A span below this one, from now on or from then."""
        if self._context is None:
            self._context = self._recorder.context_of(self._span)
        started_ns = started_ns or time_ns()
        span = self._recorder.start(name, kind, attributes, self._context, started_ns)
        return Span(self._recorder, span, name, started_ns)

    def rename(self, name: str) -> None:
        """Call it something else, once more is known."""
        self.name = name
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        """Say more about it."""
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Something has happened in it."""
        self._span.add_event(name, attributes)

    def link(self, other: "Span") -> None:
        """It has to do with another span that is not above it."""
        self._span.add_link(other._span.get_span_context())

    def link_to(self, traceparent: str) -> None:
        """The same with a span that is known by its `traceparent` only."""
        context = self._recorder.remote_span_context(traceparent)
        if context.is_valid:
            self._span.add_link(context)

    def fail(self, error_type: str, is_fault: bool = True) -> None:
        """It has failed; `is_fault` says that whoever is asked is to blame, not who asks."""
        self._span.set_attribute("error.type", error_type)
        if is_fault:
            self._recorder.set_error(self._span)

    def end(self, ended_ns: int | None = None) -> None:
        """It is over, now or since then."""
        self._span.end(ended_ns)

    @property
    def trace_id(self) -> str:
        """As logs and collectors write it."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def span_id(self) -> str:
        """As logs and collectors write it."""
        return f"{self._span.get_span_context().span_id:016x}"

    @property
    def traceparent(self) -> str:
        """What a message carries so that spans elsewhere come below this one (W3C)."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    @property
    def tracestate(self) -> str:
        """What W3C has every message carry that carries a `traceparent`."""
        return self._span.get_span_context().trace_state.to_header()


_current: ContextVar[Span | None] = ContextVar("paceline_span", default=None)


def current_span() -> Span | None:
    """The span of the request that runs here; None where none is recorded."""
    return _current.get()


def current_traceparent() -> str:
    """The `traceparent` of the current span; empty where none is recorded."""
    span = _current.get()
    return span.traceparent if span is not None else ""


def current_trace_id() -> str:
    """The trace of the current span; empty where none is recorded."""
    span = _current.get()
    return span.trace_id if span is not None else ""


def enter_span(span: Span | None) -> None:
    """Make it the current one to the end of this task."""
    _current.set(span)


@contextmanager
def current_child(name: str, attributes: Attributes | None = None) -> Iterator[None]:
    """A span below the current one for as long as the context lasts, if there is a current one."""
    parent = _current.get()
    if parent is None:
        yield
        return
    span = parent.child(name, attributes=attributes)
    try:
        yield
    except BaseException as error:
        span.fail(type(error).__name__, isinstance(error, Exception))
        raise
    finally:
        span.end()
