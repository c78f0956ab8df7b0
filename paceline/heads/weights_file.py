"""Which file holds the weights of a head. Knows nothing about what is in it."""

from pathlib import Path

from paceline.errors import InvalidConfig

SAFETENSORS = "model.safetensors"
_NAMES = (
    (SAFETENSORS, "pytorch_model.bin"),
    ("medusa_lm_head.safetensors", "medusa_lm_head.pt"),
)
"""What they are called where heads are published: safetensors, then pickles."""


def find_weights_file(head: str, allow_pickle: bool = False) -> str:
    """The name of the file, also of one that is split and has an index in its place.

    Raises:
        InvalidConfig: there is none, or only a pickle and these are not allowed.
    """
    directory = Path(head).expanduser()
    for safetensors, pickle in _NAMES:
        if (directory / safetensors).is_file():
            return safetensors
        if (directory / f"{safetensors}.index.json").is_file():
            return safetensors
        if not (directory / pickle).is_file():
            continue
        if not allow_pickle:
            raise InvalidConfig(
                f"head {head!r}: its weights are a pickle, {pickle}, which could run code when it "
                f"is read; expected {safetensors}, or --allow-pickle true for a head of a source "
                "that you trust"
            )
        return pickle
    raise InvalidConfig(f"head {head!r}: the directory {str(directory)!r} has no {SAFETENSORS}")
