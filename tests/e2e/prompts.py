"""The prompts of the end-to-end tests: from Spec-Bench where it lies beside, else our own."""

import json
from itertools import zip_longest
from pathlib import Path

SPEC_BENCH = Path(__file__).parents[3] / "shared" / "data" / "spec_bench_dev.jsonl"
OURS = Path(__file__).with_name("prompts.jsonl")
MAX_CHARACTERS = 2900
"""About 700 tokens."""

_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")


def read_prompts(number: int) -> list[str]:
    """First turns, as many of one task group as of every other; shorter ones only.

    Our own file has 12, to be had everywhere; then `number` may be more than what comes back.
    """
    path, key = (SPEC_BENCH, "turns") if SPEC_BENCH.exists() else (OURS, "prompt")
    groups: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        prompt = entry[key][0] if key == "turns" else entry[key]
        if len(prompt) <= MAX_CHARACTERS:
            # Spec-Bench divides one of its six groups, that of conversations, into eight.
            task = entry["category"] if entry["category"] in _TASKS else "conversation"
            groups.setdefault(task, []).append(prompt)
    in_turn = zip_longest(*groups.values())
    return [prompt for row in in_turn for prompt in row if prompt is not None][:number]
