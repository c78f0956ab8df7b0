"""`paceline status` shows what workers and sources say as it is."""

import pytest
import typer
from fake_coordinator import STATUS, running_fake_coordinator

from paceline.cli.status import status


def test_brackets_are_shown_and_mean_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """IPv6 addresses have them, lists do, and whatever else a worker may say."""
    monkeypatch.setenv("COLUMNS", "200")
    (worker,) = STATUS["workers"]
    told = {
        **STATUS,
        "ready": False,
        "reason": "the EndpointSlice odd has the ports [http, metrics]",
        "workers": [{**worker, "address": "[fd00::1]:7", "reason": "[bold]no[/italic]"}],
    }
    with running_fake_coordinator() as server, pytest.raises(typer.Exit):
        monkeypatch.setattr(server, "status", lambda: told)
        status(server.url)
    said = capsys.readouterr().out
    assert said.startswith("not ready: the EndpointSlice odd has the ports [http, metrics]\n")
    assert "draft   [fd00::1]:7  [bold]no[/italic]" in said
