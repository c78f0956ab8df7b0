"""How the services log: one line per event, on standard error. Never prompts, answers or keys."""

import logging


def configure_logging(level: str) -> None:
    """Log from this level on; libraries only from `warning` on."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("paceline", "coordinator", "draft_service", "target_service"):
        logging.getLogger(name).setLevel(level.upper())
