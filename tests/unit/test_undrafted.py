"""What `paceline generate` says of an answer that no draft was checked for."""

from typing import Any

import pytest
from fake_coordinator import SPECULATION, running_fake_coordinator
from typer.testing import CliRunner

from paceline.cli.api import Answer
from paceline.cli.main import app
from paceline.cli.undrafted import why_no_drafts

NONE = {**SPECULATION, "num_draft_tokens": 0, "num_proposed_tokens": 0, "draft_failures": {}}
READY = {"role": "draft", "address": "127.0.0.1:7", "ready": True, "drafter": "suffix"}
AWAY = {**READY, "ready": False, "reason": "no answer"}
TARGET = {**READY, "role": "target"}


@pytest.mark.parametrize(
    ("changed", "num_tokens", "workers", "expected"),
    [
        ({}, 9, [TARGET], "the server has no draft worker"),
        ({}, 9, [TARGET, AWAY], r"no draft worker is ready (127.0.0.1:7: no answer)"),
        ({}, 2, [TARGET, READY], "an answer of 2 tokens is too short for any"),
        ({"draft_failures": {"lost": 3}}, 9, [TARGET, READY], "drafting failed: 3 lost"),
        ({"num_proposed_tokens": 5}, 9, [TARGET, READY], "none of the 5 that were proposed was"),
        ({}, 9, [TARGET, READY], "the drafter suffix was asked and had nothing to propose"),
        ({"draft_compute_ms": 0.0}, 9, [TARGET, READY], "the drafter was not asked"),
    ],
)
def test_a_reason_is_given_when_nothing_was_drafted(
    changed: dict[str, Any], num_tokens: int, workers: list[dict[str, Any]], expected: str
) -> None:
    answer = Answer(num_tokens=num_tokens, metrics={**NONE, **changed})
    assert why_no_drafts(answer, workers).startswith(f"Nothing was drafted: {expected}")


def test_no_reason_is_given_when_drafts_were_checked() -> None:
    assert why_no_drafts(Answer(num_tokens=3, metrics=SPECULATION), [TARGET, AWAY]) == ""


@pytest.mark.parametrize("options", [[], ["--compare"]])
def test_generate_says_it_below_the_figures(options: list[str]) -> None:
    with running_fake_coordinator() as server:
        server.speculation = NONE
        result = CliRunner().invoke(app, ["generate", "Hi", "--url", server.url, *options])
    reason = "Nothing was drafted: no draft worker is ready (127.0.0.1:7: no answer)."
    assert (result.exit_code, reason in result.stderr) == (0, True)
