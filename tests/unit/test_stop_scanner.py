"""Stop strings in a text that comes in pieces."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.stop_scanner import StopScanner
from paceline.errors import InvalidRequest

# Two letters make overlaps, borders and near misses frequent.
texts = st.text("ab", max_size=24)
stops = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def expected(text: str, stop: list[str]) -> str:
    """The text before the stop string that is completed first, found the slow way."""
    for end in range(1, len(text) + 1):
        completed = [s for s in stop if text[:end].endswith(s)]
        if completed:
            return text[: end - max(map(len, completed))]
    return text


def held_length(text: str, stop: list[str]) -> int:
    """The longest end of the text that is a proper beginning of a stop string."""
    beginnings = {s[:size] for s in stop for size in range(len(s))}
    return max(len(b) for b in beginnings if text.endswith(b))


@given(texts, stops, st.data())
@example("aab", ["aab"], None)
def test_pieces_give_the_text_before_the_first_stop(
    text: str, stop: list[str], data: st.DataObject | None
) -> None:
    scanner = StopScanner(stop)
    given_out, position, stopped = "", 0, False
    while position < len(text) and not stopped:
        size = data.draw(st.integers(1, 5)) if data else 1
        piece = text[position : position + size]
        position += len(piece)
        scanned = scanner.feed(piece)
        given_out += scanned.text
        stopped = scanned.stopped
        if not stopped:
            assert len(given_out) == position - held_length(text[:position], stop)
    assert stopped == any(s in text for s in stop)
    if not stopped:
        given_out += scanner.finish()
    assert given_out == expected(text, stop)


@given(texts, st.integers(0, 24), stops)
def test_a_stop_that_ends_where_it_may_not_is_let_through(
    text: str, unstoppable: int, stop: list[str]
) -> None:
    scanner = StopScanner(stop)
    given_out = ""
    for index, character in enumerate(text):
        scanned = scanner.feed(character, can_stop=index >= unstoppable)
        given_out += scanned.text
        if scanned.stopped:
            break
    else:
        given_out += scanner.finish()
    ends = [
        (end, max(len(s) for s in stop if text[:end].endswith(s)))
        for end in range(unstoppable + 1, len(text) + 1)
        if any(text[:end].endswith(s) for s in stop)
    ]
    assert given_out == (text[: ends[0][0] - ends[0][1]] if ends else text)


def test_without_stop_strings_nothing_is_held_back() -> None:
    scanner = StopScanner([])
    assert scanner.feed("any text") == ("any text", False)
    assert scanner.finish() == ""


def test_a_half_finished_stop_is_given_out_at_the_end() -> None:
    scanner = StopScanner(["\n\nUser:"])
    assert scanner.feed("Hello.\n\nUse") == ("Hello.", False)
    assert scanner.finish() == "\n\nUse"


def test_an_empty_stop_string_is_refused_by_its_index() -> None:
    with pytest.raises(InvalidRequest, match=r"stop\[1\] is empty") as error:
        StopScanner(["a", ""])
    assert error.value.field == "stop"


def test_a_long_repetitive_stop_string_takes_linear_time() -> None:
    # The worst case of a search that starts again at every character: 10^9 comparisons.
    stop = "a" * 20_000 + "b"
    scanner = StopScanner([stop])
    text = "a" * 50_000
    given_out = "".join(scanner.feed(text[i : i + 7]).text for i in range(0, len(text), 7))
    assert len(given_out) == 30_000
    assert scanner.feed("b") == ("", True)
