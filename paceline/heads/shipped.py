"""The heads that come with Paceline, each for one model: what `--drafter auto` drafts with.

A head lies in a folder of its own beside this file, as `paceline train-drafter` writes it, and is
found by the name of its model. That a model of this name has other weights than the head was made
for would cost speed, never text; one that the head does not fit is refused by name.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

AUTO = "auto"
"""In place of a directory: the head that comes with Paceline, if there is one."""
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


def _find(head: str, info: ValidationInfo) -> str:
    if head != AUTO:
        return head
    return str(shipped_head(info.data.get("model", "")) or "")


HeadDirectory = Annotated[str, AfterValidator(_find)]
"""A setting behind one named `model`: a head's directory, empty for none; `auto` becomes that of
the head that comes with Paceline for the model, or empty where none does."""
