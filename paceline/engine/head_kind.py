"""Which method a head's directory is for, by its config.

Imports no torch and knows no tensors: a target asks it which hidden states to keep.
"""

from typing import Literal

from paceline.engine.eagle_config import read_head_config
from paceline.engine.head_config_file import read_config_file
from paceline.engine.medusa_config import read_medusa_config
from paceline.errors import InvalidConfig

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


def feature_layers_of_head(head: str, num_layers: int) -> tuple[int, ...]:
    """The layers whose hidden states a target of `num_layers` layers keeps for the head.

    Raises:
        InvalidConfig: there is no head, it is fed with nothing, or its config cannot be followed.
    """
    match head_kind(head):
        case "medusa":
            return read_medusa_config(head).feature_layers(num_layers)
        case "eagle":
            return read_head_config(head).feature_layers(num_layers)
        case "early-exit":
            raise InvalidConfig(
                f"head {head!r}: is a trained exit, which is fed with nothing; expected no head on "
                "a target whose drafts run one"
            )
