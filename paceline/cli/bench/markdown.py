"""Reports of several drafters as Markdown, to be pasted: a table for each group of tasks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.cli.bench.report import GroupFigures, Report
from paceline.cli.bench.tables import percentages, ratio, ratio_or_dash


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of one service."""

    name: str
    num_draft_parameters: int
    report: Report


Column = tuple[str, Callable[[Measured, GroupFigures], str]]

_COLUMNS: Sequence[Column] = (
    ("drafter", lambda m, g: f"`{m.name}`"),
    ("parameters", lambda m, g: parameters(m.num_draft_parameters)),
    ("draft ms/token", lambda m, g: ratio_or_dash(g.draft_ms_per_token)),
    ("tokens/pass", lambda m, g: f"{g.on.tokens_per_target_pass:.2f}"),
    ("accepted by position, %", lambda m, g: percentages(g.acceptance_by_position)),
    ("tokens/s off", lambda m, g: f"{g.off.tokens_per_s:.1f}"),
    ("on", lambda m, g: f"{g.on.tokens_per_s:.1f}"),
    ("speed-up (95 %)", lambda m, g: ratio(g.speedup, g.speedup_interval)),
    ("with prompt", lambda m, g: f"{g.speedup_with_prompt:.2f}"),
    ("bytes/token draft", lambda m, g: f"{g.draft_bytes_per_token:.0f}"),
    ("target", lambda m, g: f"{g.target_bytes_per_token:.0f}"),
    ("equal", lambda m, g: f"{g.num_equal}/{g.num_questions}"),
)


def markdown(measured: Sequence[Measured], document: Mapping[str, Any]) -> str:
    """The tables, and above them how and where it was measured, which is in `document`."""
    lines = [_conditions(document)]
    names = dict.fromkeys(group.group for one in measured for group in _groups(one.report))
    for name in names:
        lines += ["", f"**{name}**", ""]
        lines.append("| " + " | ".join(title for title, _ in _COLUMNS) + " |")
        lines.append("|" + "---|" * len(_COLUMNS))
        for one in measured:
            for group in _groups(one.report):
                if group.group == name:
                    cells = (show(one, group) for _, show in _COLUMNS)
                    lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def parameters(number: int) -> str:
    """A number of parameters in millions; none is a dash."""
    return f"{number / 1e6:.1f} M" if number else "-"


def _groups(report: Report) -> Iterator[GroupFigures]:
    if len(report.groups) > 1:
        yield from report.groups
    if report.overall is not None:
        yield report.overall


def _turns(repeats: int) -> str:
    return "off and on" if repeats == 1 else f"{repeats} times off and on"


def _conditions(document: Mapping[str, Any]) -> str:
    plan, machine = document["plan"], document["machine"]
    settings = plan["settings"]
    temperature, seed = settings["temperature"], settings["seed"]
    how = "greedy" if temperature == 0 else f"temperature {temperature:g}, seed {seed}"
    return (
        f"{document['date'][:10]}, {settings['model']}, {how}, up to {settings['max_tokens']} "
        f"tokens, {plan['concurrency']} at a time, {_turns(plan['repeats'])} in turns; "
        f"{machine['cores']} cores of {machine['cpu']}."
    )
