"""What a training counts in its replay is what the trained drafter does when it serves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eagle_owner import GREEDY, Owner
from training_files import entries, settings_for, write_text

from draft_service.config import DraftSettings
from draft_service.drafters.registry import make_drafter
from draft_service.proposer import Proposer
from draft_service.training.pipeline import run
from draft_service.training.text import read_text
from paceline.engine.table_model import VOCAB_SIZE

NUM_DRAFTS = 3


@pytest.mark.parametrize(
    ("drafter", "values", "num_columns"),
    [
        ("eagle", {"shape": "token-residual"}, 48),
        ("eagle", {"shape": "published"}, 48),
        ("medusa", {"unrolled_steps": 3}, 16),
        ("early-exit", {"exit_layer": 1}, 0),
        ("early-exit", {"exit_layer": 3}, 0),  # with EAGLE-3's features
        ("draft-model", {"num_layers": 3}, 0),
    ],
)
def test_a_live_loop_takes_as_many_passes_as_the_replay(
    target: Path, tmp_path: Path, drafter: Any, values: dict[str, Any], num_columns: int
) -> None:
    text_file = write_text(tmp_path / "text.npz", target, num_sequences=30)
    output = tmp_path / "output"
    settings = settings_for(
        output,
        target,
        text_file,
        drafter=drafter,
        draft_vocab_size=200,
        evaluate_every=1000,
        num_epochs=5,
        learning_rate=2e-2,
        **values,
    )
    head = run(settings)
    trained = {"model": str(target), "head": str(head)}
    if drafter == "draft-model":
        trained = {"model": str(head)}
    made, _ = make_drafter(
        DraftSettings(
            drafter=drafter,
            dtype="float32",  # as the replay computes
            kv_cache_tokens=2048,
            feature_projection=False,
            **trained,
        )
    )
    text = read_text(text_file, VOCAB_SIZE)
    features = output / "features"
    order, states = np.load(features / "order.npy"), np.load(features / "feat.npy")
    starts = np.load(features / "starts.npy")
    num_tokens, num_passes = 0, 0
    for index in range(6):  # a fifth is held out
        if text.temperatures[order[index]] != 0:
            continue
        ids = text.ids[text.starts[order[index]] : text.starts[order[index] + 1]].tolist()
        rows = states[starts[index] : starts[index + 1]]
        fed = rows[:, :num_columns] if drafter == "eagle" else rows[:, -16:]
        place = int(text.answer_starts[order[index]])
        num_tokens += len(ids) - 1 - place
        while place < len(ids) - 1:
            # The newest token's features are not there yet.
            own: Any = {"rows": (0, place), "data": fed[:place]} if num_columns else {"rows": None}
            owner = Owner(Proposer(made, 16, num_columns))
            found = owner.drafts(ids[: place + 1], settings=GREEDY, number=NUM_DRAFTS, **own)
            for draft, true in zip(found.token_ids, ids[place + 1 :], strict=False):
                if draft != true:
                    break
                place += 1
            place += 1
            num_passes += 1
    counted = entries(output)[-1]["held_out"]["tokens_per_pass"][str(NUM_DRAFTS)]
    assert counted > 1.0
    assert num_tokens / num_passes == pytest.approx(counted)
