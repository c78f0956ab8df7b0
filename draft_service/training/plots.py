"""Plots of a training: the loss, and how many tokens each target pass would have given.

Drawn from the lines of `progress.jsonl`; the same lines give the same bytes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOSS_PLOT = "loss.svg"
TOKENS_PLOT = "tokens-per-pass.svg"
_WINDOW = 0.02
"""Share of all steps over which the loss of single batches is averaged."""


def draw_plots(directory: Path, entries: Sequence[dict[str, Any]]) -> list[str]:
    """Draw into `directory`; returns the names of the files, none where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    # Ids of the SVG follow from this instead of chance.
    with matplotlib.rc_context({"svg.hashsalt": "paceline", "svg.fonttype": "none"}):
        _draw(directory / LOSS_PLOT, "cross entropy against the target's law", _losses(entries))
        lines = _tokens_per_pass(entries)
        _draw(directory / TOKENS_PLOT, "tokens per target pass, held-out answers", lines)
    return [LOSS_PLOT, TOKENS_PLOT]


_Lines = dict[str, tuple[list[int], list[float], str]]
"""By name: steps, values, and how the line is drawn."""


def _losses(entries: Sequence[dict[str, Any]]) -> _Lines:
    steps = [entry["step"] for entry in entries]
    lines: _Lines = {}
    for number in range(len(entries[0]["losses"])):
        values = [entry["losses"][number] for entry in entries]
        lines[f"training, token {number + 1}"] = (steps, _smoothed(values), "-")
    measured = [entry for entry in entries if "held_out" in entry]
    for number in range(len(entries[0]["losses"])):
        values = [entry["held_out"]["losses"][number] for entry in measured]
        name = f"held out, token {number + 1}"
        lines[name] = ([entry["step"] for entry in measured], values, "o--")
    return lines


def _tokens_per_pass(entries: Sequence[dict[str, Any]]) -> _Lines:
    measured = [entry for entry in entries if "held_out" in entry]
    steps = [entry["step"] for entry in measured]
    return {
        f"{length} drafts": (
            steps,
            [entry["held_out"]["tokens_per_pass"][length] for entry in measured],
            "o-",
        )
        for length in measured[-1]["held_out"]["tokens_per_pass"]
    }


def _smoothed(values: Sequence[float]) -> list[float]:
    width = max(1, round(_WINDOW * len(values)))
    return [
        sum(values[max(0, index - width + 1) : index + 1]) / min(width, index + 1)
        for index in range(len(values))
    ]


def _draw(path: Path, label: str, lines: _Lines) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, (steps, values, style) in lines.items():
        axes.plot(steps, values, style, label=name, markersize=3, linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
