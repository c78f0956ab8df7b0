"""How often an EAGLE head is right, by how many tokens' features it has been fed with.

    python benchmarks/feature_window.py --features DIRECTORY [--head HEAD] [--texts TEXTS]

A draft worker that joins a sequence in its middle (the first one was lost; the prompt came out of
the target's prefix cache) gets the features of the last tokens only. Here it joins greedy answers
of the default model that the head has not learnt from, each at the same places with windows of
several sizes, and the answers say how many of its drafts are accepted.

`--features` is the directory that `paceline train-drafter eagle --features` has made of the texts.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from draft_service.config import DraftSettings
from draft_service.drafters.registry import make_drafter
from draft_service.proposer import Proposer
from draft_service.training.text import read_text
from paceline.heads.shipped import shipped_head
from paceline.rounds import Features, ProposeRound, SequenceSettings
from paceline.token_log import TokenLog

WINDOWS = (1, 4, 16, 64, 128, 256, 512)
FIRST_PLACE = 128
"""Tokens that every place has before it, so that shorter windows are all full."""
EVERY = 24
"""Tokens between two places."""
NUM_DRAFTS = 5
HELD_OUT_SHARE = 0.02
"""Of the sequences, the first in the features' order: the share that training leaves out."""
VOCAB_SIZE = 49_152


def places(directory: Path, texts: Path) -> Iterator[tuple[int, int, int]]:
    """First token of a sequence among all, a place in it, and its length."""
    text = read_text(texts, VOCAB_SIZE)
    starts, order = (np.load(directory / f"{name}.npy") for name in ("starts", "order"))
    for number in range(round(HELD_OUT_SHARE * len(order))):
        sequence = int(order[number])
        start, length = int(starts[number]), int(starts[number + 1] - starts[number])
        first = max(int(text.answer_starts[sequence]) + 1, FIRST_PLACE)
        if text.temperatures[sequence] == 0:
            for place in range(first, length - NUM_DRAFTS, EVERY):
                yield start, place, length


def num_accepted(
    proposer: Proposer, token_ids: Sequence[int], rows: np.ndarray, place: int, window: int
) -> int:
    """Drafts that are accepted behind the first `place + 1` tokens of a known text."""
    start = max(0, place - window)
    data = np.ascontiguousarray(rows[start:place], dtype="<f2")
    features = Features(start, len(data), data.tobytes())
    log = TokenLog.of(list(token_ids[: place + 1]))
    settings = SequenceSettings(max_length=place + 1 + 2 * NUM_DRAFTS)
    round = ProposeRound("a", 1, log.span(0), NUM_DRAFTS, settings, features=features)
    answer = proposer.accept(round)
    while answer is None:
        answer = next(iter(proposer.step() or []), None)
    proposer.close("a")
    assert answer.drafts is not None and answer.error is None, answer
    pairs = zip(answer.drafts.token_ids, token_ids[place + 1 :], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(answer.drafts.token_ids))


def main() -> None:
    """Measure all windows at the same places."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--head", default=str(shipped_head("")))
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/smollm2_selfgen.npz"))
    options = parser.parse_args()
    drafter, info = make_drafter(
        DraftSettings(drafter="eagle", head=options.head, feature_projection=False)
    )
    proposer = Proposer(drafter, NUM_DRAFTS, info.feature_size)
    states = np.load(options.features / "feat.npy", mmap_mode="r")
    ids = np.load(options.features / "ids.npy", mmap_mode="r")
    accepted: dict[int, list[int]] = {window: [] for window in WINDOWS}
    for start, place, length in places(options.features, options.texts):
        rows = states[start : start + length, : info.feature_size]
        token_ids = ids[start : start + length].tolist()
        for window in WINDOWS:
            accepted[window].append(num_accepted(proposer, token_ids, rows, place, window))
    sys.stdout.write(f"{len(accepted[WINDOWS[0]])} places, {NUM_DRAFTS} drafts each\n")
    for window, numbers in accepted.items():
        first = np.mean([number > 0 for number in numbers])
        sys.stdout.write(
            f"features of {window:3} tokens: {1 + np.mean(numbers):.3f} tokens a pass, the first "
            f"draft accepted in {first:.1%}\n"
        )


if __name__ == "__main__":
    main()
