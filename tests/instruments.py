"""The instruments of all three services, as the table in docs/metrics.md has them.

Run as a script, writes that table anew.
"""

from pathlib import Path

from coordinator.metrics import Metrics
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.metrics import DraftMetrics
from draft_service.proposer import Proposer
from paceline.call_counts import CallCounts
from paceline.engine.device_worker import DeviceWorker, device_thread
from paceline.engine.table_model import TableLaw, TableModel
from paceline.metrics import Instrument, Instruments
from paceline.rounds import WorkerInfo
from target_service.metrics import TargetMetrics
from target_service.verifier import Verifier, VerifierLimits

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
BEGIN = "<!-- instruments: written by `make format` -->\n"
END = "<!-- end of instruments -->\n"
SERVICES = ("coordinator", "target", "draft")


def by_service() -> dict[str, Instruments]:
    """As the services have them, of the smallest workers that there are."""
    info = WorkerInfo(instance_id="", version="")
    model = TableModel(TableLaw(7))
    verifier = Verifier(model, VerifierLimits())
    proposer = Proposer(SuffixDrafter(), 16)
    target = DeviceWorker(verifier, device_thread("never started"))
    draft = DeviceWorker(proposer, device_thread("never started"))
    found = {
        "coordinator": Metrics().instruments,
        "target": TargetMetrics(target, verifier.passes, model.kv_cache, info).instruments,
        "draft": DraftMetrics(draft, proposer.passes, info).instruments,
    }
    for instruments in found.values():
        instruments.show_calls(CallCounts("any"))
    return found


def all_instruments() -> list[Instrument]:
    """Each once."""
    found = [one for instruments in by_service().values() for one in instruments.described]
    return list(dict.fromkeys(found))


def table() -> str:
    """In Markdown, those of all services first."""
    services = by_service()
    rows = ["| name | type | labels | unit | service | meaning |", "|---|---|---|---|---|---|"]
    for one in all_instruments():
        having = [name for name in SERVICES if one in services[name].described]
        where = "all" if len(having) == len(SERVICES) else ", ".join(having)
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{one.name}` | {one.kind} | {labels} | {one.unit} | {where} | {one.text} |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert found, f"{PAGE.name} has no line {BEGIN}"
    assert ended, f"{PAGE.name} has no line {END}"
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
