"""What the stack around the engine costs, measured in one run on this machine.

(a) plain decoding through the whole stack against `generate` of transformers;
(b) throughput of several clients against a bare loop over the same engine in this process;
(c) what coordinator, wire and waiting add to a round, from the coordinator's own histogram.

The sides take turns and never run at the same time; between two turns is a pause in which the
threads of the side before go to sleep. Every side makes the same number of tokens of the same
prompts, and its prompts are in the cache (transformers has none, so only its time per token after
the first counts). Run with `python benchmarks/overhead.py`; needs no server.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import torch
from contenders import BareLoop, Prompt, Run, Stack, TransformersGenerate
from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from coordinator.requests import ChatMessage
from coordinator.tokenizer import Tokenizer
from paceline.cli import terminal
from paceline.cli.api import CoordinatorApi
from paceline.cli.bench.figures import median_of_buckets
from paceline.cli.bench.machine import describe_machine, describe_versions
from paceline.cli.bench.prompts import read_questions
from paceline.cli.config import ServeSettings
from paceline.cli.local_service import local_service
from paceline.config import read_settings
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.loading import load_model
from paceline.engine.worker_model import build_worker_model
from target_service.config import TargetSettings

PROMPTS = Path(__file__).resolve().parent.parent / "tests" / "e2e" / "prompts.jsonl"
PAUSE_S = 0.3
"""Ample for OpenMP's threads, which spin for some milliseconds after their last work."""
OVERHEAD = "paceline_round_overhead_seconds"
SPECULATIONS: dict[str, dict[str, Any] | None] = {
    "off": None,
    "auto": {"method": "auto"},
    "drafts always": {"method": "suffix", "num_speculative_tokens": 7},
}


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure, and what it should be."""

    what: str
    value: float
    expected: str
    detail: dict[str, float]


def main() -> int:
    """Measure, print, write; 1 if two sides made different tokens where they must not."""
    options = _options()
    threads = options.threads
    torch.set_num_threads(threads)
    settings = read_settings(
        ServeSettings, {"http_port": "0", "grpc_port": "0", "num_threads": str(threads)}
    )
    started = datetime.now(UTC)
    with (
        local_service(settings, terminal.messages) as service,
        CoordinatorApi(service.url) as api,
    ):
        terminal.say("Loading the model twice more: for the bare loop and for transformers")
        loaded = load_model(DEFAULT_MODEL, dtype="float32", device="cpu")
        tokenizer = Tokenizer((file.name, file.content) for file in loaded.tokenizer_files)
        prompts = [
            tokenizer.encode_chat((ChatMessage("user", question.text),))
            for question in read_questions(options.prompts)
        ]
        target = TargetSettings(dtype="float32", kv_cache_tokens=65_536, num_threads=threads)
        comparison = _Comparison(
            Stack(api),
            BareLoop(build_worker_model(target).model),
            TransformersGenerate(loaded.module),
            prompts,
            options.max_tokens,
            options.repeats,
        )
        goals = [comparison.plain_decoding(options.limit)]
        goals += [comparison.throughput(number) for number in options.concurrency]
        goals += [
            comparison.round_overhead(service.url, name, options.limit) for name in SPECULATIONS
        ]
    _print(goals, comparison)
    document = {
        "date": started.isoformat(timespec="seconds"),
        "command": sys.argv,
        "versions": describe_versions(),
        "machine": describe_machine() | {"threads": threads},
        "goals": [
            {"what": g.what, "value": g.value, "expected": g.expected, **g.detail} for g in goals
        ],
        "num_unequal": comparison.num_unequal,
        "num_equal_to_transformers": comparison.num_equal_to_transformers,
        "num_compared_to_transformers": comparison.num_compared_to_transformers,
    }
    if options.output:
        options.output.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if comparison.num_unequal else 0


class _Comparison:
    """The three sides and their turns."""

    def __init__(
        self,
        stack: Stack,
        bare: BareLoop,
        generate: TransformersGenerate,
        prompts: Sequence[Prompt],
        num_tokens: int,
        num_repeats: int,
    ) -> None:
        self._stack = stack
        self._bare = bare
        self._generate = generate
        self._prompts = prompts
        self._num_tokens = num_tokens
        self._num_repeats = num_repeats
        self.num_unequal = 0
        """Runs in which the stack said something else than the bare loop or than itself."""
        self.num_equal_to_transformers = 0
        self.num_compared_to_transformers = 0

    def plain_decoding(self, num_prompts: int) -> Goal:
        """(a): how many times as fast the stack is as transformers, token by token."""
        stack, theirs = [], []
        for prompt in self._prompts[:num_prompts]:
            self._stack.run([prompt], 2)
            for _ in range(self._num_repeats):
                time.sleep(PAUSE_S)
                ours = self._stack.run([prompt], self._num_tokens)
                time.sleep(PAUSE_S)
                other = self._generate.run(prompt, self._num_tokens)
                stack.append(ours.time_per_token_s)
                theirs.append(other.time_per_token_s)
                self.num_compared_to_transformers += 1
                self.num_equal_to_transformers += ours.token_ids == other.token_ids
        return Goal(
            "plain decoding, times as fast as transformers",
            median(theirs) / median(stack),
            "at least 1",
            {"stack_ms": 1000 * median(stack), "transformers_ms": 1000 * median(theirs)},
        )

    def throughput(self, concurrency: int) -> Goal:
        """(b): the stack's tokens/s with so many clients as a share of the bare loop's."""
        prompts = [self._prompts[i % len(self._prompts)] for i in range(concurrency)]
        self._stack.run(prompts, 2)
        self._bare.run(prompts, 2)
        stack: list[Run] = []
        bare: list[Run] = []
        for _ in range(self._num_repeats):
            time.sleep(PAUSE_S)
            stack.append(self._stack.run(prompts, self._num_tokens))
            time.sleep(PAUSE_S)
            bare.append(self._bare.run(prompts, self._num_tokens))
        expected = bare[0].token_ids
        self.num_unequal += sum(run.token_ids != expected for run in stack + bare)
        ours, alone = (median(run.tokens_per_s for run in runs) for runs in (stack, bare))
        return Goal(
            f"throughput, {concurrency} clients, share of a bare loop's",
            ours / alone,
            "at least 0.95",
            {"stack_tokens_per_s": ours, "bare_tokens_per_s": alone},
        )

    def round_overhead(self, url: str, name: str, num_prompts: int) -> Goal:
        """(c): the median of what a round takes beside computing, in milliseconds."""
        before = overhead_buckets(url)
        for prompt in self._prompts[:num_prompts]:
            self._stack.run([prompt], self._num_tokens, SPECULATIONS[name])
        after = overhead_buckets(url)
        counts = {bound: after[bound] - before[bound] for bound in after}
        return Goal(
            f"overhead of a round in ms, {name}",
            1000 * median_of_buckets(counts),
            "under 1.5",
            {"num_rounds": max(counts.values())},
        )


def overhead_buckets(url: str) -> dict[float, float]:
    """The coordinator's counts of rounds by what they took beside computing."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{OVERHEAD}_bucket"
    }


def _print(goals: Sequence[Goal], comparison: _Comparison) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("", "measured", "goal", "from"):
        table.add_column(title, justify="right" if title == "measured" else "left")
    for goal in goals:
        detail = ", ".join(f"{name} {value:.1f}" for name, value in goal.detail.items())
        table.add_row(goal.what, f"{goal.value:.3f}", goal.expected, detail)
    terminal.results.print(table)
    terminal.results.print(
        f"Stack and bare loop disagreed in {comparison.num_unequal} runs; transformers said the "
        f"same in {comparison.num_equal_to_transformers} of "
        f"{comparison.num_compared_to_transformers}.",
        soft_wrap=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="as for paceline bench")
    parser.add_argument("--limit", type=int, default=6, help="prompts of (a) and (c)")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument(
        "--threads", type=int, default=describe_machine()["cores"], help="of every side"
    )
    parser.add_argument("--output", type=Path, help="JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
