"""Trains a drafter: settings, then the stages.

Ends with status 2 and a sentence when a setting or file is wrong, with 130 on Ctrl-C.
"""

import sys

from draft_service.training.announcement import announcement
from draft_service.training.settings import TrainingSettings
from paceline.config import load_settings
from paceline.errors import InvalidConfig
from paceline.logs import configure_logging

INTERRUPTED = 130
WRONG_USE = 2


def main(argv: list[str]) -> int:
    """Run with these options, of which the first may be the drafter without `--drafter`."""
    if argv and not argv[0].startswith("-"):
        argv = ["--drafter", *argv]
    try:
        settings = load_settings(TrainingSettings, argv, "paceline train-drafter")
        configure_logging(settings.log_level, settings.log_format)
        sys.stderr.write(f"{announcement(settings)}\n")
        from draft_service.training.pipeline import run  # torch: not for --help

        directory = run(settings)
    except InvalidConfig as error:
        sys.stderr.write(f"paceline train-drafter: {error.message}\n")
        return WRONG_USE
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; the same command goes on from the last checkpoint.\n")
        return INTERRUPTED
    option = "--draft-model" if settings.drafter == "draft-model" else "--head"
    use = f"paceline serve --drafter {settings.drafter} {option} {directory}"
    sys.stderr.write(f"The drafter is in {directory}: {use}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
