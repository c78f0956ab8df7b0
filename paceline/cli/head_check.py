"""What can be seen of heads before anything starts: that there is one, for this drafter and model.

Reads configs and file names only. The workers look at everything once more, tensors included; so
what cannot be seen here, such as the sizes of a model that is yet to be fetched, is left to them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cli.config import ServeSettings
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import read_head_config
from paceline.heads.exit_config import read_exit_config
from paceline.heads.kind import KINDS_RUN_BY, head_kind, refuse_head
from paceline.heads.medusa_config import read_medusa_config
from paceline.heads.shipped import shipped_head
from paceline.heads.sizes import Size, check_sizes
from paceline.heads.weights_file import find_weights_file


@dataclass(frozen=True, slots=True)
class _KnownSizes:
    """Of a target whose config is at hand."""

    name: str
    hidden_size: int
    vocab_size: int


def check_heads(settings: ServeSettings) -> None:
    """Raise `InvalidConfig` for a head that the drafter cannot run, or one in a model's place."""
    for option, model in (("--model", settings.model), ("--draft-model", settings.draft_model)):
        if model:
            refuse_head(f"{option} {model!r}", model)
    head = settings.head if settings.drafter == "early-exit" else ""
    head = settings.head_directory if settings.feeds_head else head
    if not head:
        return
    kind = head_kind(head)
    if kind not in KINDS_RUN_BY[settings.method]:
        raise InvalidConfig(
            f"--head {head!r} is for the drafter {kind}; expected one for "
            f"{' or '.join(KINDS_RUN_BY[settings.method])}: --drafter is {settings.drafter}"
        )
    match kind:
        case "eagle":
            sizes = read_head_config(head).sizes
        case "medusa":
            sizes = read_medusa_config(head).sizes
        case "early-exit":
            sizes = read_exit_config(head).sizes
    find_weights_file(head, settings.allow_pickle)
    _check_model(head, settings.model, sizes)


def _check_model(head: str, model: str, sizes: tuple[Size, ...]) -> None:
    if model.startswith("table:"):
        raise InvalidConfig(
            f"--head is {head!r}, but the table model {model!r} has no hidden states that a head "
            "could draft from"
        )
    target = _known_sizes(model)
    if target is not None:
        check_sizes(head, target, sizes)


def _known_sizes(model: str) -> _KnownSizes | None:
    """Of the bundled model, by the head that comes with it, and of a directory."""
    own = shipped_head(model)
    if own is not None:
        config = read_head_config(str(own))
        name = model or "SmolLM2-135M-Instruct"
        return _KnownSizes(name, config.target_hidden_size, config.vocab_size)
    try:
        table: Any = json.loads((Path(model).expanduser() / "config.json").read_text())
        table = table.get("text_config", table)
        return _KnownSizes(model, int(table["hidden_size"]), int(table["vocab_size"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # the worker fetches it, or says what is wrong with it
