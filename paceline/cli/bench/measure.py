"""Asks every question with and without speculation in turns, and keeps what each request cost.

At concurrency 1 the two modes take turns at each question, else at each batch of questions, and so
do several services, so that whatever else the machine does meets all alike. Before its turns each
prompt is asked for one token. That finds nothing in the cache and shows what the prompt costs; the
turns then all find it there, and differ in decoding alone.

Invariant: tokens are counted by their ids, never by chunks; a request whose chunks do not add up
to what the server counted is a failure like any other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

from paceline.cli.api import Answer, ApiError, CoordinatorApi
from paceline.cli.bench.prompts import Question, groups_of
from paceline.cli.bench.traffic import Traffic, read_traffic

Mode = Literal["prompt", "off", "on"]
"""`prompt`: its first token only, nothing cached; `off` and `on`: speculation."""

QUESTIONS_PER_CLIENT = 4
"""Size of a batch: while the last of it are answered, some clients have nothing to do."""
_OFF = {"method": "off"}
_WARM_UP = "List the days of the week, twice."
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One request. With an `error`, a sentence, the figures mean nothing."""

    question_id: str
    category: str
    group: str
    mode: Mode
    repeat: int
    error: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    """From sending the request to the end of the answer."""
    time_to_first_token_s: float = 0.0
    time_per_token_s: float | None = None
    """(last - first) / (tokens - 1); None for a single token."""
    chunks: Sequence[tuple[float, int]] = ()
    """Seconds since the request was sent, and tokens that came then."""
    speculative_decoding: Mapping[str, Any] = field(default_factory=dict)
    """As the server has it."""
    text: str = ""
    token_ids: Sequence[int] = ()

    @property
    def said(self) -> tuple[str, tuple[int, ...], str]:
        """What must not depend on drafts, nor on the service."""
        return self.text, tuple(self.token_ids), self.finish_reason


@dataclass(frozen=True, slots=True)
class Plan:
    """How to ask."""

    concurrency: int
    repeats: int
    settings: Mapping[str, Any]
    """Parameters of every request."""
    speculation: Mapping[str, Any]
    """That of the mode `on`."""
    raw: bool = False
    """Whether prompts are continued as they are, without chat template."""

    @property
    def batch_size(self) -> int:
        """Questions asked in one mode before the other has its turn."""
        return 1 if self.concurrency == 1 else self.concurrency * QUESTIONS_PER_CLIENT

    def turns(self) -> Iterator[tuple[Mode, int]]:
        """Mode and repeat, in the order in which a batch is asked."""
        yield "prompt", 0
        for repeat in range(self.repeats):
            yield "off", repeat
            yield "on", repeat

    def num_requests(self, num_questions: int) -> int:
        """How many rows there will be of each service."""
        return num_questions * (1 + 2 * self.repeats)


class Bench:
    """What is measured of one service. All of it holds wherever the run is broken off."""

    def __init__(
        self, api: CoordinatorApi, plan: Plan, on_row: Callable[[Row], None] = lambda row: None
    ) -> None:
        self._api = api
        self._plan = plan
        self._on_row = on_row
        self.rows: list[Row] = []
        self.busy_s: dict[Mode, float] = {"prompt": 0.0, "off": 0.0, "on": 0.0}
        """Time in which at least one request of a mode was running."""
        self.traffic: dict[str, Traffic] = {}
        """By group: what went between coordinator and workers in the mode `on`."""

    def warm_up(self) -> None:
        """Ask something in both modes that is not measured; raises `ApiError` if that fails."""
        for mode in ("off", "on"):
            body = self._body(_WARM_UP, mode) | {"max_tokens": _WARM_UP_TOKENS}
            self._api.stream(self._path, body, _ignore, Answer())

    def ask_all(
        self, clients: ThreadPoolExecutor, batch: Sequence[Question], mode: Mode, repeat: int
    ) -> None:
        """Ask questions of one group in one mode; failures are in the rows."""
        before = self._traffic(mode)
        started = perf_counter()
        try:
            for row in clients.map(lambda question: self._ask(question, mode, repeat), batch):
                self.rows.append(row)
        finally:
            self.busy_s[mode] += perf_counter() - started
        after = self._traffic(mode)
        if before is not None and after is not None:
            (group,) = groups_of(batch)
            self.traffic[group] = self.traffic.get(group, Traffic()) + (after - before)

    def _traffic(self, mode: Mode) -> Traffic | None:
        """So far; None in other modes, where it is of no interest."""
        try:
            return read_traffic(self._api.status()) if mode == "on" else None
        except ApiError:  # the requests say why
            return None

    def _ask(self, question: Question, mode: Mode, repeat: int) -> Row:
        answer = Answer()
        error = ""
        try:
            self._api.stream(self._path, self._body(question.text, mode), _ignore, answer)
            error = _miscount(answer)
        except ApiError as failure:
            error = failure.message
        row = _row(question, mode, repeat, answer, error)
        self._on_row(row)
        return row

    @property
    def _path(self) -> str:
        return "/v1/completions" if self._plan.raw else "/v1/chat/completions"

    def _body(self, text: str, mode: Mode) -> dict[str, Any]:
        body = {**self._plan.settings, "return_token_ids": True}
        if self._plan.raw:
            body["prompt"] = text
        else:
            body["messages"] = [{"role": "user", "content": text}]
        if mode == "prompt":
            body["max_tokens"] = 1
        body["speculation"] = self._plan.speculation if mode == "on" else _OFF
        return body


def measure(
    benches: Sequence[Bench], plan: Plan, questions: Sequence[Question], check: Callable[[], None]
) -> None:
    """Ask all services all questions. `check` is called before each batch and may end the run.

    Raises `ApiError` when even a warm-up fails; later failures are in the rows.
    """
    for bench in benches:
        bench.warm_up()
    with ThreadPoolExecutor(plan.concurrency) as clients:
        for batch in _batches(questions, plan.batch_size):
            check()
            for mode, repeat in plan.turns():
                for bench in benches:
                    bench.ask_all(clients, batch, mode, repeat)


def _row(question: Question, mode: Mode, repeat: int, answer: Answer, error: str) -> Row:
    per_token_s = None
    if answer.num_tokens > 1 and answer.chunks:
        decoding_s = answer.chunks[-1].seconds - answer.chunks[0].seconds
        per_token_s = decoding_s / (answer.num_tokens - 1)
    return Row(
        question_id=question.question_id,
        category=question.category,
        group=question.group,
        mode=mode,
        repeat=repeat,
        error=error,
        finish_reason=answer.finish_reason,
        prompt_tokens=answer.num_prompt_tokens,
        completion_tokens=answer.num_tokens,
        seconds=answer.seconds,
        time_to_first_token_s=answer.time_to_first_token_s,
        time_per_token_s=per_token_s,
        chunks=tuple((chunk.seconds, chunk.num_tokens) for chunk in answer.chunks),
        speculative_decoding=answer.metrics,
        text=answer.text,
        token_ids=tuple(answer.token_ids),
    )


def _miscount(answer: Answer) -> str:
    """What is wrong with the counts of an answer; empty if nothing is."""
    num_in_chunks = sum(chunk.num_tokens for chunk in answer.chunks)
    if num_in_chunks != answer.num_tokens:
        return (
            f"the chunks hold {num_in_chunks} token ids, but usage.completion_tokens is "
            f"{answer.num_tokens}"
        )
    if not answer.metrics:
        return "the answer says nothing of its rounds (metrics.speculative_decoding)"
    return "" if num_in_chunks else "the answer has no tokens"


def _batches(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    """Each of questions of one group."""
    for group in groups_of(questions):
        members = [question for question in questions if question.group == group]
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _ignore(text: str) -> None:
    """Answers are not shown while they come."""
