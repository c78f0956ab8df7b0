"""What ranks cost and bring on this machine: 1, 2 and 3 processes that share one model.

The default model, which has heads for 1 or 3 ranks, and a model of random weights of about its size
with heads for 1, 2, 3 and 6. All services of a model are up at once and asked in turns, with drafts
and without, by `paceline bench`, which compares their answers with themselves. Run with
`python benchmarks/tensor_parallel.py`; needs no server. Ranks share the cores of this machine, so
more of them bring no speed here: it shows what they exchange, and what that costs.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from paceline.cli import terminal
from paceline.cli.config import ServeSettings
from paceline.cli.local_service import LocalService, local_service
from paceline.config import read_settings
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.model_directory import resolve_model

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from scraping import Samples, samples_of  # noqa: E402

PROMPTS = ROOT / "tests" / "e2e" / "prompts.jsonl"
KV_CACHE_TOKENS = "16384"


@dataclass(frozen=True)
class Served:
    """One service, and what its target had counted before it was asked."""

    size: int
    service: LocalService
    pids: set[int]
    before: Samples


@dataclass(frozen=True)
class Row:
    """What one size did with one model."""

    model: str
    size: int
    off: float
    """Tokens/s without drafts."""
    on: float
    tokens_per_pass: float
    ms_per_pass: float
    """Of the target, in both modes."""
    kilobytes_per_pass: float
    """That rank 0 exchanges with the others, both ways."""
    resident_mb: float
    """Memory of each rank, its share of the model and of PyTorch."""


def main() -> None:
    """Ask all, and print a row for each size of each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--limit", type=int, default=1, help="questions of each task group")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=1)
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        model = _random_model(Path(directory) / "random-12-heads")
        for name, sizes in (("", (1, 3)), (str(model), (1, 2, 3))):
            rows += _rows(name, sizes, options, Path(directory))
    lines = [
        "| model | ranks | tokens/s without drafts | with | tokens a pass | ms a pass | KB a pass "
        "| MB of a rank |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.model} | {row.size} | {row.off:.1f} | {row.on:.1f} | {row.tokens_per_pass:.2f} "
        f"| {row.ms_per_pass:.0f} | {row.kilobytes_per_pass:.0f} | {row.resident_mb:.0f} |"
        for row in rows
    ]
    terminal.results.print("\n".join(lines), soft_wrap=True)


def _rows(
    model: str, sizes: tuple[int, ...], options: argparse.Namespace, directory: Path
) -> list[Row]:
    with ExitStack() as services:
        served: list[Served] = []
        known: set[int] = set()
        for size in sizes:
            texts = {
                "model": model,
                "tensor_parallel_size": str(size),
                "kv_cache_tokens": KV_CACHE_TOKENS,
                **{"http_port": "0", "grpc_port": "0", "redis_url": "none"},
            }
            service = services.enter_context(
                local_service(read_settings(ServeSettings, texts), terminal.messages)
            )
            pids = _target_pids() - known
            known |= pids
            served.append(Served(size, service, pids, _target_figures(service)))
        report = _asked(served, options, directory / "bench.json")
        return [
            _row(Path(model).name or DEFAULT_MODEL, one, figures)
            for one, figures in zip(served, report, strict=True)
        ]


def _asked(served: list[Served], options: argparse.Namespace, output: Path) -> list[dict[str, Any]]:
    """The overall figures of each service."""
    command = [sys.executable, "-m", "paceline.cli.main", "bench", str(options.prompts)]
    command += [part for one in served for part in ("--url", one.service.url)]
    command += ["--limit", str(options.limit), "--max-tokens", str(options.max_tokens)]
    command += ["--concurrency", str(options.concurrency), "--output", str(output)]
    subprocess.run(command, check=True)
    document = json.loads(output.read_text())
    return [service["overall"] for service in document["services"]]


def _row(model: str, served: Served, figures: dict[str, Any]) -> Row:
    after = _target_figures(served.service)

    def grown(name: str) -> float:
        return after.get(name, 0.0) - served.before.get(name, 0.0)

    num_passes = grown("worker_passes_total{role=target}")
    num_bytes = sum(
        grown(f"rank_exchange_bytes_total{{direction={direction}}}")
        for direction in ("sent", "received")
    )
    return Row(
        model=model,
        size=served.size,
        off=figures["off"]["tokens_per_s"],
        on=figures["on"]["tokens_per_s"],
        tokens_per_pass=figures["on"]["tokens_per_target_pass"],
        ms_per_pass=1000 * grown("worker_pass_seconds_total{role=target}") / num_passes,
        kilobytes_per_pass=num_bytes / num_passes / 1024,
        resident_mb=_resident_mb(served.pids),
    )


def _target_figures(service: LocalService) -> Samples:
    """Of the only target; the coordinator's page is the first."""
    return samples_of(httpx.get(service.metrics_urls[1]).text)


def _target_pids() -> set[int]:
    """Of all targets that this process has started, other ranks included (Linux)."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if parent == os.getpid() and b"target_service" in command:
                found.add(int(folder.name))
    return found


def _resident_mb(pids: set[int]) -> float:
    """Mean of what they hold."""
    texts = [Path(f"/proc/{pid}/statm").read_text() for pid in pids]
    return fmean(int(text.split()[1]) * resource.getpagesize() / 1e6 for text in texts)


def _random_model(directory: Path) -> Path:
    """A checkpoint with heads for more sizes, and the default model's tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=768,
        intermediate_size=1536,
        num_hidden_layers=16,
        num_attention_heads=12,
        num_key_value_heads=6,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(DEFAULT_MODEL, None))
    tokenizer.save_pretrained(directory)
    return directory


if __name__ == "__main__":
    main()
