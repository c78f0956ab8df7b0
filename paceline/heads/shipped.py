"""The heads that come with Paceline, each for one model: what `--drafter auto` drafts with.

A head lies in a folder of its own beside this file, as `paceline train-drafter` writes it, and is
found by the name of its model. That a model of this name has other weights than the head was made
for would cost speed, never text; one that the head does not fit is refused by name.
"""

from pathlib import Path

HEADS = {
    "": "smollm2-135m-instruct",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m-instruct",
}
"""Folder by model, as in `--model`; the bundled model has no name."""


def shipped_head(model: str, heads: Path = Path(__file__).parent) -> Path | None:
    """The directory of the head for a model, among `heads`; None where none came along."""
    folder = HEADS.get(model)
    if folder is None or not (heads / folder / "config.json").is_file():
        return None
    return heads / folder
