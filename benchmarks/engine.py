"""What a pass costs, next to transformers' own `generate`, measured in turns in one process.

    python benchmarks/engine.py [--model MODEL] [--dtype float32] [--num-threads 2] [--turns 10]

Prints milliseconds: the median over the turns, and the fastest.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.kv_storage import SequenceStorage
from paceline.engine.loading import load_model
from paceline.engine.model import PassSequence
from paceline.engine.transformer import TransformerModel

ROWS = (1, 2, 4, 6, 8, 16)
CONTEXTS = (256, 1024)
TREES = {
    "a tree of 7, 3 deep, 4 branches": (-1, 0, 1, 1, 0, 4, 4),
    "7 that all follow the same token": (-1,) * 7,
}
"""Parents of drafts, depth-first."""
NUM_GENERATED = 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(options.num_threads)
    plain = load_model(options.model, dtype=options.dtype, device="cpu")
    loaded = load_model(options.model, dtype=options.dtype, device="cpu")
    room = max(CONTEXTS) + 512
    engine = TransformerModel(loaded.module, loaded.vocab_size, room, room)
    measurements: dict[str, Callable[[], float]] = {}
    for context in CONTEXTS:
        text = [i % loaded.vocab_size for i in range(context)]
        for rows in ROWS:
            name = f"pass of {rows:2} rows behind {context} tokens"
            measurements[name] = pass_timer(engine, text, rows)
        for tree, parents in TREES.items():
            name = f"1 and {tree} behind {context} tokens"
            measurements[name] = pass_timer(engine, text, 1 + len(parents), parents)
        name = f"transformers, a token behind {context} tokens"
        measurements[name] = generate_timer(plain.module, text)
    results = defaultdict(list)
    for _ in range(options.turns):
        for name, measure in measurements.items():
            results[name].append(1000 * measure())
    for name, values in results.items():
        sys.stdout.write(f"{name:60} {median(values):7.1f} {min(values):7.1f}\n")


def pass_timer(
    engine: TransformerModel, text: list[int], rows: int, tree: Sequence[int] = ()
) -> Callable[[], float]:
    """Seconds of a pass of one sequence; every row's logits are wanted, as in a verification.

    Of a tree its first path is put in place then.
    """
    kv = engine.kv_cache.open(text[:1], salt="")
    if not engine.kv_cache.reserve(kv, len(text) + rows):
        raise RuntimeError("the KV cache has no room for the context")
    engine.forward([PassSequence(kv, text, 0)])
    storage = SequenceStorage(kv.storage.key_value.clone(), kv.storage.features.clone())
    engine.kv_cache.release(kv)

    def measure() -> float:
        kv = engine.kv_cache.open(text[:1], salt="")
        engine.kv_cache.reserve(kv, len(text) + rows)
        kv.storage, kv.num_tokens = storage, len(text)
        start = perf_counter()
        engine.forward([PassSequence(kv, text[:rows], rows, tree)])
        if tree:
            engine.kv_cache.keep_path(kv, [0])
        seconds = perf_counter() - start
        engine.kv_cache.release(kv)
        return seconds

    return measure


def generate_timer(model: PreTrainedModel, text: list[int]) -> Callable[[], float]:
    """Seconds per token of `generate` after the first one, the median over some."""
    prompt = torch.tensor([text])

    def measure() -> float:
        arrivals = Arrivals()
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NUM_GENERATED + 1,
            min_new_tokens=NUM_GENERATED + 1,
            do_sample=False,
            streamer=arrivals,
        )
        # The prompt comes first, and the first token took the time of the prompt.
        times = arrivals.times[1:]
        return median(later - earlier for earlier, later in pairwise(times))

    return measure


class Arrivals(BaseStreamer):  # type: ignore[misc]  # untyped
    """Notes when `generate` hands over a token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        pass


if __name__ == "__main__":
    main()
