"""Why an answer came without drafts, in a sentence for people.

Judges by what the answer itself counts and by the state of the workers. Knows nothing about how
the coordinator decides; so the last reason is what is left when the others do not hold.
"""

from collections.abc import Mapping
from typing import Any

from paceline.cli.api import Answer

FEWEST_TOKENS = 3
"""The first token comes with the prompt; a draft must leave the target one token to say itself."""


def why_no_drafts(answer: Answer, workers: list[Mapping[str, Any]]) -> str:
    """The reason, as a sentence; empty when drafts were checked.

    `workers` are those of the service's status.
    """
    counts = answer.metrics
    if counts.get("num_draft_tokens"):
        return ""
    drafts = [worker for worker in workers if worker["role"] == "draft"]
    if not drafts:
        reason = "the server has no draft worker"
    elif not any(worker["ready"] for worker in drafts):
        states = "; ".join(f"{worker['address']}: {worker['reason']}" for worker in drafts)
        reason = f"no draft worker is ready ({states})"
    elif answer.num_tokens < FEWEST_TOKENS:
        reason = f"an answer of {answer.num_tokens} tokens is too short for any"
    elif failures := counts.get("draft_failures"):
        reason = "drafting failed: " + ", ".join(f"{n} {name}" for name, n in failures.items())
    elif num_proposed := counts.get("num_proposed_tokens"):
        reason = f"none of the {num_proposed} that were proposed was sure enough to pay"
    elif counts.get("draft_compute_ms"):
        reason = f"the drafter {drafts[0]['drafter']} was asked and had nothing to propose"
    else:
        reason = "the drafter was not asked, since its drafts do not pay here or are switched off"
    return f"Nothing was drafted: {reason}."
