"""Which method a head's directory is for, by its config.

Knows no tensors.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from paceline.errors import InvalidConfig
from paceline.heads.config_file import CONFIG_FILE, read_config_file
from paceline.heads.eagle_config import is_known_eagle

HeadKind = Literal["eagle", "medusa", "early-exit"]
"""The drafter that runs a head."""

KINDS_RUN_BY: Mapping[str, tuple[HeadKind, ...]] = {
    "eagle": ("eagle",),
    "medusa": ("medusa",),
    "hybrid": ("eagle", "medusa"),
    "auto": ("eagle", "medusa"),
    "early-exit": ("early-exit",),
}
"""The heads that a drafter runs; others run none."""


def head_kind(head: str) -> HeadKind:
    """The drafter that runs the head in the directory `head`.

    What is not known for another one is taken for EAGLE-1, whose config is that of any Llama.

    Raises:
        InvalidConfig: there is no head.
    """
    return _known_kind(read_config_file(head)) or "eagle"


def _known_kind(table: Mapping[str, Any]) -> HeadKind | None:
    """None for what may be the config of a model."""
    if table.get("model_type") == "early_exit":
        return "early-exit"
    is_medusa = table.get("model_type") == "medusa" or table.get("medusa_num_heads") is not None
    if is_medusa or table.get("architectures") == ["MedusaModel"]:
        return "medusa"
    return "eagle" if is_known_eagle(table) else None


def refuse_head(what: str, model: str) -> None:
    """Raise `InvalidConfig` when the directory `model`, called `what` by the user, is a head's.

    One of EAGLE-1 passes: only its tensors tell it from a model.
    """
    try:
        table = json.loads((Path(model).expanduser() / CONFIG_FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return  # no directory, or one whose faults others name
    kind = _known_kind(table) if isinstance(table, dict) else None
    if kind is not None:
        raise InvalidConfig(
            f"{what} is the directory of a head for the drafter {kind}, not of a model; expected "
            "it in --head"
        )


def check_head_kind(head: str, drafter: HeadKind) -> None:
    """Raise `InvalidConfig` when the head in the directory `head` is for another drafter."""
    kind = head_kind(head)
    if kind != drafter:
        raise InvalidConfig(
            f"head {head!r}: its config.json is that of a head for the drafter {kind}; expected "
            f"one for {drafter}"
        )
