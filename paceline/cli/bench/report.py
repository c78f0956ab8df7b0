"""Figures from rows: per task group and overall. Pure; knows neither server nor terminal.

Only questions that worked in every request count; the others are failures. A question's rate is
the mean over its repeats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from paceline.cli.bench.figures import (
    Interval,
    acceptance_by_position,
    speedup,
    speedup_interval,
)
from paceline.cli.bench.measure import Mode, Row
from paceline.cli.bench.traffic import Traffic

OVERALL = "overall"


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """How fast answers came in one mode."""

    tokens_per_s: float
    """Mean over questions of tokens over time of the whole request, its prompt in the cache."""
    tokens_per_s_with_prompt: float
    """The same, with the first token taking what it took when nothing was in the cache."""
    median_time_to_first_token_s: float
    """The prompt in the cache."""
    median_time_per_token_s: float | None
    """None when no answer had two tokens."""
    median_chunk_gap_s: float | None
    """Between two chunks of an answer, whatever number of tokens each has."""
    num_target_passes: int
    num_tokens: int
    tokens_per_target_pass: float


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What speculation did for the questions of one group."""

    group: str
    num_questions: int
    num_equal: int
    """Questions whose text and token ids were the same in all requests."""
    median_prompt_s: float
    """Time to the first token with nothing in the cache."""
    off: ModeFigures
    on: ModeFigures
    speedup: float
    """Spec-Bench's formula on `tokens_per_s`."""
    speedup_interval: Interval | None
    speedup_with_prompt: float
    """Spec-Bench's formula on `tokens_per_s_with_prompt`."""
    speedup_with_prompt_interval: Interval | None
    mean_acceptance_length: float
    """1 + accepted drafts per round with drafts (vLLM's convention)."""
    draft_acceptance_rate: float
    acceptance_by_position: Sequence[float]
    draft_ms_per_token: float | None
    """What draft workers computed for the rounds, over the tokens that they proposed; None when
    they proposed none."""
    draft_bytes_per_token: float
    """Between coordinator and draft workers, both ways, per token of the answers."""
    target_bytes_per_token: float
    """Between coordinator and target workers, both ways, features included."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    groups: Sequence[GroupFigures]
    overall: GroupFigures | None
    """None when no question worked."""
    throughput: Mapping[Mode, float] | None
    """Tokens/s of all clients together by mode; None with one client."""
    failures: Sequence[Row]
    unequal_question_ids: Sequence[str]


def make_report(
    rows: Sequence[Row],
    seed: int,
    busy_s: Mapping[Mode, float] | None = None,
    traffic: Mapping[str, Traffic] | None = None,
) -> Report:
    """`seed` is the bootstrap's; `busy_s`, given for more than one client, is `Bench.busy_s`, and
    `traffic` is `Bench.traffic`."""
    by_question: dict[str, list[Row]] = {}
    for row in rows:
        by_question.setdefault(row.question_id, []).append(row)
    questions = [_Question(of_one) for of_one in by_question.values() if _is_complete(of_one)]
    names = list(dict.fromkeys(question.group for question in questions))
    bytes_per_token = _BytesPerToken(rows, traffic or {})
    return Report(
        groups=[
            _group_figures(
                name, [q for q in questions if q.group == name], seed, bytes_per_token.of([name])
            )
            for name in names
        ],
        overall=_group_figures(OVERALL, questions, seed, bytes_per_token.of(names))
        if questions
        else None,
        throughput=_throughput(rows, busy_s) if busy_s else None,
        failures=[row for row in rows if row.error],
        unequal_question_ids=[q.question_id for q in questions if not q.is_equal],
    )


def _is_complete(rows: Sequence[Row]) -> bool:
    """Whether both modes were asked equally often and nothing failed."""
    number = {mode: sum(row.mode == mode for row in rows) for mode in ("prompt", "off", "on")}
    is_whole = number["prompt"] == 1 and number["off"] == number["on"] > 0
    return is_whole and not any(row.error for row in rows)


class _Question:
    """The rows of one question."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.question_id = rows[0].question_id
        self.group = rows[0].group
        self.prompt_s = next(row for row in rows if row.mode == "prompt").time_to_first_token_s
        self.rows: dict[Mode, list[Row]] = {
            "off": [row for row in rows if row.mode == "off"],
            "on": [row for row in rows if row.mode == "on"],
        }
        self.is_equal = len({row.said for mode in self.rows.values() for row in mode}) == 1

    def tokens_per_s(self, mode: Mode) -> float:
        return fmean(row.completion_tokens / row.seconds for row in self.rows[mode])

    def tokens_per_s_with_prompt(self, mode: Mode) -> float:
        return fmean(
            row.completion_tokens / (self.prompt_s + row.seconds - row.time_to_first_token_s)
            for row in self.rows[mode]
        )


class _BytesPerToken:
    """Traffic over the tokens that it was for, those of questions in no figure included."""

    def __init__(self, rows: Sequence[Row], traffic: Mapping[str, Traffic]) -> None:
        self._rows = [row for row in rows if row.mode == "on"]
        self._traffic = traffic

    def of(self, groups: Sequence[str]) -> tuple[float, float]:
        """With the draft workers, and with the target workers."""
        num_tokens = sum(row.completion_tokens for row in self._rows if row.group in groups)
        total = sum((self._traffic.get(group, Traffic()) for group in groups), Traffic())
        return total.draft / max(num_tokens, 1), total.target / max(num_tokens, 1)


def _group_figures(
    name: str, questions: Sequence[_Question], seed: int, bytes_per_token: tuple[float, float]
) -> GroupFigures:
    off = [question.tokens_per_s("off") for question in questions]
    on = [question.tokens_per_s("on") for question in questions]
    off_with_prompt = [question.tokens_per_s_with_prompt("off") for question in questions]
    on_with_prompt = [question.tokens_per_s_with_prompt("on") for question in questions]
    speculative = [row.speculative_decoding for q in questions for row in q.rows["on"]]
    num_rounds = _total(speculative, "num_spec_steps")
    num_drafts = _total(speculative, "num_draft_tokens")
    num_accepted = _total(speculative, "num_accepted_draft_tokens")
    num_proposed = _total(speculative, "num_proposed_tokens")
    draft_ms = sum(answer["draft_compute_ms"] for answer in speculative)
    return GroupFigures(
        group=name,
        num_questions=len(questions),
        num_equal=sum(question.is_equal for question in questions),
        median_prompt_s=median(question.prompt_s for question in questions),
        off=_mode_figures(questions, "off"),
        on=_mode_figures(questions, "on"),
        speedup=speedup(off, on),
        speedup_interval=speedup_interval(off, on, seed),
        speedup_with_prompt=speedup(off_with_prompt, on_with_prompt),
        speedup_with_prompt_interval=speedup_interval(off_with_prompt, on_with_prompt, seed),
        mean_acceptance_length=1 + num_accepted / num_rounds if num_rounds else 0.0,
        draft_acceptance_rate=num_accepted / num_drafts if num_drafts else 0.0,
        acceptance_by_position=acceptance_by_position(_histogram(speculative)),
        draft_ms_per_token=draft_ms / num_proposed if num_proposed else None,
        draft_bytes_per_token=bytes_per_token[0],
        target_bytes_per_token=bytes_per_token[1],
    )


def _mode_figures(questions: Sequence[_Question], mode: Mode) -> ModeFigures:
    rows = [row for question in questions for row in question.rows[mode]]
    per_token_s = [row.time_per_token_s for row in rows if row.time_per_token_s is not None]
    gaps_s = [
        later - earlier
        for row in rows
        for (earlier, _), (later, _) in zip(row.chunks, row.chunks[1:], strict=False)
    ]
    speculative = [row.speculative_decoding for row in rows]
    num_passes = _total(speculative, "num_target_passes")
    num_committed = _total(speculative, "num_committed_tokens")
    return ModeFigures(
        tokens_per_s=fmean(question.tokens_per_s(mode) for question in questions),
        tokens_per_s_with_prompt=fmean(q.tokens_per_s_with_prompt(mode) for q in questions),
        median_time_to_first_token_s=median(row.time_to_first_token_s for row in rows),
        median_time_per_token_s=median(per_token_s) if per_token_s else None,
        median_chunk_gap_s=median(gaps_s) if gaps_s else None,
        num_target_passes=num_passes,
        num_tokens=sum(row.completion_tokens for row in rows),
        tokens_per_target_pass=num_committed / num_passes if num_passes else 0.0,
    )


def questions_answered_otherwise(services: Sequence[Sequence[Row]]) -> list[str]:
    """Ids of the questions that several services did not give one answer to."""
    answers: dict[str, set[tuple[str, tuple[int, ...], str]]] = {}
    for rows in services:
        for row in rows:
            if row.mode != "prompt" and not row.error:
                answers.setdefault(row.question_id, set()).add(row.said)
    return [question_id for question_id, said in answers.items() if len(said) > 1]


def _throughput(rows: Sequence[Row], busy_s: Mapping[Mode, float]) -> dict[Mode, float]:
    found: dict[Mode, float] = {}
    for mode in ("off", "on"):
        if busy_s[mode]:
            worked = [row for row in rows if row.mode == mode and not row.error]
            found[mode] = sum(row.completion_tokens for row in worked) / busy_s[mode]
    return found


def _total(speculative: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(answer[name] for answer in speculative)


def _histogram(speculative: Sequence[Mapping[str, Any]]) -> list[int]:
    histograms = [answer["acceptance_histogram"] for answer in speculative]
    length = max((len(histogram) for histogram in histograms), default=0)
    return [
        sum(histogram[number] for histogram in histograms if number < len(histogram))
        for number in range(length)
    ]
