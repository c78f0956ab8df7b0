"""`paceline train-drafter`: trains a drafter for a model, in a process of its own.

The process takes this one's place, so that Ctrl-C, the exit status and what it prints are the
training's own, and so are its options: `draft_service/training/settings.py` describes them.
"""

import os
import sys

import typer

MODULE = "draft_service.training"


def train_drafter(context: typer.Context) -> None:
    """Train a drafter for a model from its own text; --help shows the options."""
    # -P: a folder named `draft_service` where the user happens to be must not be run instead.
    os.execv(sys.executable, [sys.executable, "-P", "-m", MODULE, *context.args])
