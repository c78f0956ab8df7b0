"""Draws panels of the dashboards for docs/observability.md, out of a real run.

Starts the whole service and a real Prometheus (Debian's package) that scrapes it every second, asks
questions for a while, and draws what the dashboards' own queries answer. No Grafana: matplotlib
draws the curves. Run with `python benchmarks/dashboard_pictures.py`; needs no server.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import matplotlib

from paceline.cli import terminal
from paceline.cli.bench.prompts import read_questions
from paceline.cli.config import ServeSettings
from paceline.cli.local_service import local_service
from paceline.config import read_settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from prometheus_server import ManagedPrometheus, static_jobs  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

PICTURES = {
    "round-parts": ("speculation", "Time of a round, by part"),
    "acceptance-by-position": ("speculation", "Acceptance by position"),
    "drafts": ("speculation", "Drafts: proposed, checked, accepted"),
}
UNITS = {"s": "seconds", "percentunit": "share", "short": "", "reqps": "per second"}
RATE_INTERVAL = "15s"
STEP_S = 1.0


def main() -> None:
    """Run, ask, draw."""
    options = _options()
    told = {"http_port": "0", "grpc_port": "0", **_pairs(options.settings)}
    settings = read_settings(ServeSettings, told)
    texts = [question.text for question in read_questions(options.prompts)]
    with local_service(settings, terminal.messages) as service:
        addresses = [urlsplit(url).netloc for url in service.metrics_urls]
        jobs = {"coordinator": addresses[:1], "workers": addresses[1:]}
        with ManagedPrometheus(
            static_jobs(jobs), sorted((ROOT / "helm" / "rules").glob("*.yaml"))
        ) as server:
            start = time.time()
            terminal.say(f"Asking for {options.seconds} s, {options.concurrency} at a time")
            with ThreadPoolExecutor(options.concurrency) as pool:
                for number in range(options.concurrency):
                    rotated = texts[number:] + texts[:number]
                    pool.submit(_ask, service.url, rotated, start + options.seconds, options.drafts)
            end = time.time()
            for name, (dashboard, title) in PICTURES.items():
                _draw(
                    server, ROOT / f"docs/images/{name}.png", _panel(dashboard, title), start, end
                )


def _ask(url: str, texts: Sequence[str], until: float, num_drafts: int | None) -> None:
    with httpx.Client(base_url=url, trust_env=False, timeout=None) as client:
        while time.time() < until:
            for text in texts:
                if time.time() >= until:
                    return
                messages = [{"role": "user", "content": text}]
                body: dict[str, Any] = {"messages": messages, "max_tokens": 128}
                if num_drafts is not None:
                    body["speculation"] = {"num_speculative_tokens": num_drafts}
                client.post("/v1/chat/completions", json=body).raise_for_status()


def _panel(dashboard: str, title: str) -> dict[str, Any]:
    path = ROOT / "helm" / "dashboards" / f"{dashboard}.json"
    panels: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return next(panel for panel in panels if panel["title"] == title)


def _draw(
    server: ManagedPrometheus, path: Path, panel: dict[str, Any], start: float, end: float
) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", RATE_INTERVAL)
        expression = re.sub(r"\$\w+", ".*", expression)
        for series in server.range(expression, start, end, STEP_S):
            labels = series["metric"]
            legend = re.sub(
                r"{{(\w+)}}",
                lambda found, labels=labels: labels.get(found[1], ""),
                target["legendFormat"],
            )
            times, values = zip(*series["values"], strict=True)
            axes.plot([when - start for when in times], [*map(float, values)], label=legend)
    axes.set_title(panel["title"], fontsize=10)
    axes.set_xlabel("seconds", fontsize=8)
    axes.set_ylabel(UNITS[panel["fieldConfig"]["defaults"]["unit"]], fontsize=8)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    terminal.say(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} KB")


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    return dict(setting.split("=", 1) for setting in settings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=Path, default=ROOT / "tests/e2e/prompts.jsonl")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--drafts", type=int, help="ask for so many in each round; default: auto")
    parser.add_argument("settings", nargs="*", help="of `paceline serve`, as model=table:7")
    return parser.parse_args()


if __name__ == "__main__":
    main()
