"""Which method a head's directory is for, by its config.

Knows no tensors.
"""

from typing import Literal

from paceline.errors import InvalidConfig
from paceline.heads.config_file import read_config_file

HeadKind = Literal["eagle", "medusa", "early-exit"]
"""The drafter that runs a head."""


def head_kind(head: str) -> HeadKind:
    """The drafter that runs the head in the directory `head`.

    Raises:
        InvalidConfig: there is no head.
    """
    table = read_config_file(head)
    if table.get("model_type") == "early_exit":
        return "early-exit"
    is_medusa = table.get("model_type") == "medusa" or table.get("medusa_num_heads") is not None
    return "medusa" if is_medusa or table.get("architectures") == ["MedusaModel"] else "eagle"


def check_head_kind(head: str, drafter: HeadKind) -> None:
    """Raise `InvalidConfig` when the head in the directory `head` is for another drafter."""
    kind = head_kind(head)
    if kind != drafter:
        raise InvalidConfig(
            f"head {head!r}: its config.json is that of a head for the drafter {kind}; expected "
            f"one for {drafter}"
        )
