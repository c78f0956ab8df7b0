"""Draft, target and coordinator as processes of their own that talk over gRPC, on one card."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from chained_models import prompts
from contenders import Run, Stack
from overhead import overhead_buckets

from paceline.cli.api import CoordinatorApi
from paceline.cli.bench.figures import median_of_buckets

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

from processes import Coordinator, Processes  # noqa: E402

NUM_DRAFTS = 4
NUM_PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Pair:
    """Checkpoints of a target and a draft, and how they are to run."""

    target: Path
    draft: Path
    device: str
    dtype: str
    kv_cache_tokens: int
    vocab_size: int


def measure_services(
    pair: Pair,
    batches: Sequence[int],
    num_tokens: int,
    directory: Path,
    has_time: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Tokens/s plain and with drafts, and what the coordinator takes of the time."""
    settings = {
        "device": pair.device,
        "dtype": pair.dtype,
        "kv_cache_tokens": pair.kv_cache_tokens,
    }
    results = []
    directory.mkdir(exist_ok=True)
    with Processes(directory, num_threads=max(1, (os.cpu_count() or 2) // 2)) as processes:
        # One after the other: each looks at what the other has left of the card.
        target = processes.target(model=str(pair.target), max_model_len=2048, **settings)
        target.wait_ready()
        draft = processes.draft("draft-model", model=str(pair.draft), **settings)
        stack = processes.stack(target, {"draft-model": draft})
        with CoordinatorApi(stack.coordinator.url) as api:
            asking = _Asking(Stack(api), stack.coordinator)
            for batch in batches:
                if results and not has_time():
                    break
                texts = prompts(pair.vocab_size, batch, NUM_PROMPT_TOKENS)
                results.append({"batch": batch, **asking.compare(texts, num_tokens)})
    return results


class _Asking:
    """The service and its clients."""

    def __init__(self, stack: Stack, coordinator: Coordinator) -> None:
        self._stack = stack
        self._coordinator = coordinator

    def compare(self, texts: list[list[int]], num_tokens: int) -> dict[str, Any]:
        speculation = {"method": "draft-model", "num_speculative_tokens": NUM_DRAFTS}
        plain, off = self._measured(texts, num_tokens, None)
        drafted, on = self._measured(texts, num_tokens, speculation)
        return {"plain": plain, "drafts": drafted, "is_equal": on.token_ids == off.token_ids}

    def _measured(
        self, texts: list[list[int]], num_tokens: int, speculation: dict[str, Any] | None
    ) -> tuple[dict[str, Any], Run]:
        self._stack.run(texts, 4, speculation)
        url = self._coordinator.url
        buckets, cpu_s = overhead_buckets(url), _cpu_seconds(self._coordinator)
        run = self._stack.run(texts, num_tokens, speculation)
        cpu_s = _cpu_seconds(self._coordinator) - cpu_s
        after = overhead_buckets(url)
        counts = {bound: after[bound] - buckets[bound] for bound in after}
        overhead_s = median_of_buckets(counts)
        return {
            "tokens_per_s": run.tokens_per_s,
            "coordinator_cpu_share": cpu_s / run.seconds,
            "round_overhead_ms": 1000 * overhead_s if isfinite(overhead_s) else "over 100",
        }, run


def _cpu_seconds(coordinator: Coordinator) -> float:
    """What its process has computed so far (Linux)."""
    stat = Path(f"/proc/{coordinator.child.process.pid}/stat").read_text()
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
