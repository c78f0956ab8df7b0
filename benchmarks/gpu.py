"""Checks and measures this version on a GPU; without one runs all of it small, on the CPU.

    sh benchmarks/gpu.sh [--skip services …] [--output gpu.json]

Models have the shape of Llama 3.1 8B and Llama 3.2 1B and random weights, made on the device;
nothing is downloaded. Parts, each within its share of the time, and written down when it is over:

- exactness: a small model against the CPU's float32, speculation on against off, in every type;
- passes: milliseconds and launches of one pass, batch 1, 8 and 32, one row and five;
- decoding: tokens/s plain and with drafts, target and draft in one process;
- services: the same over gRPC, target, draft and coordinator each a process.
"""

import argparse
import gc
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from paceline.config import set_default_environment
from paceline.engine.device import CPU, CUBLAS_ENVIRONMENT, DTYPES, Device, dtype_on, open_device

set_default_environment(CUBLAS_ENVIRONMENT)

import torch  # noqa: E402
from chained_models import (  # noqa: E402
    DRAFT_1B,
    SMALL_DRAFT,
    SMALL_TARGET,
    TARGET_8B,
    Shape,
    chained_model,
    write_checkpoint,
)
from gpu_engine import decoding, exactness, load_worker, pass_costs  # noqa: E402
from gpu_services import Pair, measure_services  # noqa: E402
from gpu_table import write_tables  # noqa: E402

from paceline.cli.bench.machine import describe_machine, describe_versions  # noqa: E402

PARTS = ("exactness", "passes", "decoding", "services")
BUDGET_S = {"exactness": 90.0, "passes": 60.0, "decoding": 120.0, "services": 150.0}
"""No part begins anything new when its time is over; together with making the models 8 minutes."""
BATCHES = (1, 8, 32)
ROWS = (1, 5)
"""Plain, and with four drafts."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What is measured on a kind of device."""

    target: Shape
    draft: Shape
    agreements: tuple[float, ...]
    """How often drafts are right, given that those before them were."""
    num_texts: int
    num_tokens: int
    num_passes: int
    kv_cache_tokens: int


ON_CARD = Scale(TARGET_8B, DRAFT_1B, (0.6, 0.8, 0.95), 24, 96, 20, 65_536)
ON_CPU = Scale(SMALL_TARGET, SMALL_DRAFT, (0.6, 0.95), 4, 16, 3, 32_768)
SERVED_AGREEMENT = 0.8


def main() -> int:
    """Run the parts; 1 if something that is claimed was not so."""
    options = _options()
    device = open_device(options.device)
    is_card = device is not CPU
    scale = ON_CARD if is_card else ON_CPU
    title = device.facts[0] if is_card else "CPU fallback, no GPU"
    document: dict[str, Any] = {
        "device": title,
        "facts": device.facts,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "seconds": {},
    }
    # Whoever ends it early gets what there is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{title}: stopped before the end"))
    try:
        with tempfile.TemporaryDirectory() as folder:
            measuring = _Measuring(device, scale, Path(folder), options.scale_of_time)
            for part in PARTS:
                if part not in options.skip:
                    sys.stderr.write(f"{title}: {part}\n")
                    measuring.run(part, document)
                    options.output.write_text(json.dumps(document, indent=2) + "\n")
    finally:
        write_tables(document, sys.stdout)
    return 1 if has_fault(document) else 0


def has_fault(document: dict[str, Any]) -> bool:
    """Whether a part failed, or tokens differed that are claimed to be equal."""
    return any(
        "failed" in document[part] for part in PARTS if isinstance(document.get(part), dict)
    ) or any(
        row["equal_with_drafts"] != row["texts"] and not row["varies_with_width"]
        for row in document.get("exactness", {}).values()
        if isinstance(row, dict)
    )


class _Measuring:
    """The parts, and the checkpoints that they share."""

    def __init__(self, device: Device, scale: Scale, folder: Path, times: float) -> None:
        self._device = device
        self._scale = scale
        self._folder = folder
        self._times = times
        self._dtype = dtype_on(device, "auto")
        self._models: dict[tuple[Shape, float], Any] = {}

    def run(self, part: str, document: dict[str, Any]) -> None:
        """Measure a part, and note what came out or why nothing did."""
        started = monotonic()
        try:
            document[part] = getattr(self, part)()
        except Exception as error:  # the other parts are worth having
            document[part] = {"failed": f"{type(error).__name__}: {error}"}
        document["seconds"][part] = round(monotonic() - started, 1)

    def exactness(self) -> dict[str, Any]:
        directory = self._folder / "exactness"
        has_time = self._clock("exactness")
        return exactness(directory, self._device, self._scale.num_texts, has_time)

    def passes(self) -> dict[str, Any]:
        scale, has_time = self._scale, self._clock("passes")
        models = {scale.target.name: self._model(scale.target)}
        models[scale.draft.name] = self._model(scale.draft, scale.agreements[0])
        return {
            name: pass_costs(model, self._device, BATCHES, ROWS, scale.num_passes, has_time)
            for name, model in models.items()
        }

    def decoding(self) -> list[dict[str, Any]]:
        scale, has_time = self._scale, self._clock("decoding")
        target = self._model(scale.target)
        drafts = {each: self._model(scale.draft, each) for each in scale.agreements}
        return decoding(target, drafts, BATCHES, scale.num_tokens, has_time)

    def services(self) -> list[dict[str, Any]]:
        scale, has_time = self._scale, self._clock("services")
        pair = Pair(
            self._checkpoint(scale.target),
            self._checkpoint(scale.draft, SERVED_AGREEMENT),
            str(self._device.torch_device),
            self._dtype,
            scale.kv_cache_tokens,
            scale.target.vocab_size,
        )
        self._models.clear()
        gc.collect()
        if self._device is not CPU:
            torch.cuda.empty_cache()  # the processes need it
        return measure_services(pair, BATCHES, scale.num_tokens, self._folder / "logs", has_time)

    def _clock(self, part: str) -> Callable[[], bool]:
        deadline = monotonic() + BUDGET_S[part] * self._times
        return lambda: monotonic() < deadline

    def _model(self, shape: Shape, agreement: float = 1.0) -> Any:
        key = shape, agreement
        if key not in self._models:
            directory, kv_cache_tokens = self._checkpoint(*key), self._scale.kv_cache_tokens
            worker = load_worker(directory, self._device, self._dtype, kv_cache_tokens)
            self._models[key] = worker.model
        return self._models[key]

    def _checkpoint(self, shape: Shape, agreement: float = 1.0) -> Path:
        directory = self._folder / f"{shape.name} {agreement:g}".replace(" ", "-")
        if not directory.exists():
            device = self._device.torch_device
            module = chained_model(shape, DTYPES[self._dtype], device, agreement)
            write_checkpoint(directory, module)
        return directory


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--skip", nargs="*", default=[], choices=PARTS)
    parser.add_argument("--output", type=Path, default=Path("gpu.json"), help="JSON file")
    parser.add_argument(
        "--scale-of-time", type=float, default=1.0, help="times the time that each part has"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
