"""What Helm says when it has installed the chart."""

import json
from pathlib import Path
from typing import Any

from tests.chart.rendering import CHART, helm, needs_helm

pytestmark = needs_helm


def notes(*files: str, **values: Any) -> str:
    options: list[str | Path] = ["--namespace", "demo", "--dry-run=client", "--values", "-"]
    for file in files:
        options += ["--values", CHART / "ci" / f"{file}-values.yaml"]
    text = helm("install", "paceline", CHART, *options, stdin=json.dumps(values))
    return text.partition("\nNOTES:\n")[2]


def test_the_notes_warn_that_nobody_is_asked_who_they_are_and_say_how_to_ask() -> None:
    said = notes()
    assert "WARNING: nobody is asked who they are." in said
    assert "security.apiKeys.existingSecret=" in said
    assert "all pods of this namespace" in said
    assert "Everybody in the cluster" in notes(networkPolicy={"enabled": False})
    assert "WARNING" not in notes("tls")


def test_the_notes_ask_as_the_service_has_to_be_asked() -> None:
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in notes()
    secured = notes("tls")
    assert "--cacert ca.crt" in secured and "Authorization: Bearer" in secured


def test_the_notes_say_how_groups_are_replaced_one_after_the_other() -> None:
    assert "delete pods" not in notes()
    assert "delete pods" not in notes("ranks", target={"groupKind": "LeaderWorkerSet"})
    assert "paceline-group=0" in notes("ranks")


def test_the_notes_say_what_the_redis_is_good_for() -> None:
    assert "for development" in notes()
    assert "for development" not in notes("external-redis")
