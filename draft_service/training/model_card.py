"""The README of a trained drafter: what it is, what made it, how well it does.

Every number in it comes from the settings or from `progress.jsonl`.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draft_service.training.plots import draw_plots
from draft_service.training.settings import TrainingSettings
from paceline import __version__
from paceline.config import describe_settings
from paceline.engine.head_tensors import INTEGERS
from paceline.engine.safetensors_directory import TensorFiles

CARD_FILE = "README.md"


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card says beside settings and measurements."""

    title: str
    description: str
    """What kind of drafter it is, and for which engines."""
    target: str
    num_parameters: int
    """Trained ones."""
    num_draft_tokens: int
    num_target_tokens: int
    num_sequences: int
    """That were learnt from."""
    num_tokens: int
    """In these."""
    num_held_out: int
    replays_greedy: bool


def write_card(
    directory: Path,
    facts: CardFacts,
    settings: TrainingSettings,
    entries: Sequence[dict[str, Any]],
) -> None:
    """Write the card, with plots where they can be drawn, into `directory`."""
    plots = draw_plots(directory, entries)
    (directory / CARD_FILE).write_text(_card(directory, facts, settings, entries, plots))


def _card(
    directory: Path,
    facts: CardFacts,
    settings: TrainingSettings,
    entries: Sequence[dict[str, Any]],
    plots: Sequence[str],
) -> str:
    measured = entries[-1]["held_out"]
    return f"""---
base_model: {facts.target}
tags: [speculative-decoding, {settings.drafter}]
---

# {facts.title}

{facts.description}

It was trained by Paceline {__version__} on text that {facts.target} wrote itself, and contains
parts of its weights: the licence of {facts.target} applies to it.

```
{_command(settings)}
```

| | |
|---|---|
| trained parameters | {facts.num_parameters:,} |
| parameters of the checkpoint | {_num_parameters(directory):,} |
| draft vocabulary | {_vocabulary(facts)} |
| learnt from | {facts.num_sequences:,} sequences, {facts.num_tokens:,} tokens, \
{settings.num_epochs} × |
| steps | {len(entries):,} |

## How well it does

On {facts.num_held_out:,} sequences that it has not seen. "Token n": the n-th of a draft, where
those before it are right.

| | {_row(f"token {number + 1}" for number in range(len(measured["losses"])))}
|---{"|---" * len(measured["losses"])}|
| cross entropy against the target's law | {_row(f"{loss:.3f}" for loss in measured["losses"])}
| first choice is the target's | {_row(f"{share:.1%}" for share in measured["top1"])}

Tokens per target pass behind the first token, from a replay of the draft and verify loop over
{_replayed(facts)}:

| drafts a round | {_row(measured["tokens_per_pass"])}
|---{"|---" * len(measured["tokens_per_pass"])}|
| tokens per target pass | {_row(f"{v:.3f}" for v in measured["tokens_per_pass"].values())}

These are the target's own kind of questions; others are answered with other figures, which
`paceline bench` measures.
{"".join(f"{chr(10)}![{Path(name).stem}]({name}){chr(10)}" for name in plots)}"""


def _row(cells: Any) -> str:
    return " | ".join(map(str, cells)) + " |"


def _num_parameters(directory: Path) -> int:
    """Numbers in the checkpoint, without ids and masks."""
    files = TensorFiles(f"head {str(directory)!r}", directory)
    tensors = map(files.read, files.names)
    return sum(t.numel() for t in tensors if t.dtype not in (*INTEGERS, torch.bool))


def _vocabulary(facts: CardFacts) -> str:
    if facts.num_draft_tokens == facts.num_target_tokens:
        return f"all {facts.num_target_tokens:,} tokens of the target"
    return f"{facts.num_draft_tokens:,} tokens, the most frequent of the text"


def _replayed(facts: CardFacts) -> str:
    if facts.replays_greedy:
        return "the greedy answers among them, as serving would run it"
    return "the answers among them as they were sampled, since none is greedy"


def _command(settings: TrainingSettings) -> str:
    texts = {name: "" if value is None else str(value) for name, value in settings}
    options = [
        f"{doc.option} {shlex.quote(texts[doc.field])}"
        for doc in describe_settings(TrainingSettings)
        if doc.field != "drafter" and texts[doc.field] != doc.default
    ]
    return " \\\n    ".join([f"paceline train-drafter {settings.drafter}", *options])
