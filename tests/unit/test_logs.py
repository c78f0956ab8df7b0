"""What a line of a log has in it."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from paceline.logs import LogFormat, bind_log_context, configure_logging
from paceline.telemetry.recorder import Recorder
from paceline.telemetry.span import enter_span
from paceline.telemetry.tracer import Tracer

logger = logging.getLogger("coordinator.test")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    names = ("paceline", "coordinator", "draft_service", "target_service")
    handlers, level = [*root.handlers], root.level
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def objects(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    return [json.loads(line) for line in lines(capsys)]


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_a_line_is_one_object_where_nobody_looks(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info", log_format)
    logger.info("worker %s is ready", "a:1")
    logger.debug("not told at this level")
    logging.getLogger("some.library").info("nor this")
    logging.getLogger("some.library").warning("but this")
    first, second = objects(capsys)
    assert list(first) == ["time", "level", "logger", "event"]
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "info",
        "logger": "coordinator.test",
        "event": "worker a:1 is ready",
    }
    assert second["event"] == "but this"


def test_as_text_it_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "text")
    logger.warning("odd", extra={"sequence_id": "abc"})
    [line] = lines(capsys)
    assert line.endswith(" WARNING coordinator.test: odd sequence_id=abc")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_is_one_line_whatever_is_in_it(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info", log_format)
    said = "lost:\n2026 INFO forged\r\x1b[2J\x85\u2028\ud800 ü"
    logger.warning("worker %s", said, extra={"sequence_id": "a\nb"})
    [line] = lines(capsys)
    if log_format == "json":
        found = json.loads(line)
        assert (found["event"], found["sequence_id"]) == (f"worker {said}", "a\nb")
    else:
        said = r"lost:\n2026 INFO forged\r\x1b[2J\x85\u2028\ud800 ü"
        assert line.endswith(rf": worker {said} sequence_id=a\nb")


async def test_a_line_says_which_request_sequence_and_span_it_is_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info", "json")
    span = Tracer(Recorder("test", "", {})).serve("chat", {})
    assert span is not None

    async def answer() -> None:
        bind_log_context(request_id="r1")
        enter_span(span)
        bind_log_context(sequence_id="s1")
        logger.info("in it")

    await asyncio.create_task(answer())
    logger.info("outside of it")
    inside, outside = objects(capsys)
    assert inside["request_id"] == "r1"
    assert inside["sequence_id"] == "s1"
    assert inside["trace_id"] == span.trace_id
    assert inside["span_id"] == span.span_id
    assert set(outside) == {"time", "level", "logger", "event"}


async def test_an_exception_that_nobody_took_is_told_with_its_lines_and_without_its_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info", "json")

    async def fail() -> None:
        prompt = "a secret"
        assert prompt
        raise ValueError("broken")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    del task  # the event loop tells when it is collected
    [line] = objects(capsys)
    assert line["logger"] == "asyncio"
    assert "never retrieved" in line["event"]
    assert line["exception"].endswith("ValueError: broken")
    assert 'raise ValueError("broken")' in line["exception"]
    assert "secret" not in line["exception"].replace('prompt = "a secret"', "")
