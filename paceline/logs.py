"""How the services log: one line per event, on standard error. Never prompts, answers or keys.

Everything goes through `logging`, that of libraries too. A line has time, level, logger and event,
and what identifies the request where there is one: its id, the sequence, the span. As text for
people, as JSON for programs.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from structlog.contextvars import bind_contextvars, merge_contextvars
from structlog.processors import ExceptionRenderer, JSONRenderer
from structlog.stdlib import ExtraAdder, ProcessorFormatter
from structlog.types import EventDict, Processor, WrappedLogger

from paceline.telemetry.span import current_span

LogFormat = Literal["auto", "text", "json"]

_EXTRAS = ("request_id", "sequence_id", "round", "trace_id", "span_id")
_HEAD = ("time", "level", "logger", "event")
"""What every line has, in this order."""


def configure_logging(level: str, log_format: LogFormat = "auto") -> None:
    """Log from this level on; libraries only from `warning` on."""
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(_as_text if is_text else JSONRenderer()))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("paceline", "coordinator", "draft_service", "target_service"):
        logging.getLogger(name).setLevel(level.upper())


def bind_log_context(**values: str) -> None:
    """Have these in all lines of this task from now on: `request_id`, `sequence_id`."""
    bind_contextvars(**values)


def _formatter(renderer: Processor) -> ProcessorFormatter:
    return ProcessorFormatter(
        foreign_pre_chain=[merge_contextvars, _with_span, ExtraAdder(_EXTRAS), _with_head],
        # Tracebacks as Python writes them: with the lines of code, without the values in them.
        processors=[ProcessorFormatter.remove_processors_meta, ExceptionRenderer(), renderer],
    )


def _with_span(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    span = current_span()
    if span is not None:
        line.update(trace_id=span.trace_id, span_id=span.span_id)
    return line


def _with_head(_: WrappedLogger, level: str, line: EventDict) -> EventDict:
    record: logging.LogRecord = line["_record"]
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"time": time, "level": level, "logger": record.name, **line}


def _as_text(_: WrappedLogger, level: str, line: EventDict) -> str:
    exception = line.pop("exception", None)
    more = [f"{key}={value}" for key, value in line.items() if key not in _HEAD]
    first = f"{line['time']} {level.upper()} {line['logger']}: {line['event']}"
    return _in_one_line(" ".join([first, *more])) + (f"\n{exception}" if exception else "")


def _in_one_line(text: str) -> str:
    """What others have written ends no line, and tells the terminal nothing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
