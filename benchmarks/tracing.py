"""What tracing costs: the same answers with spans of no request, of a tenth, and of all.

Three services side by side, which take turns and never run at the same time, send their spans to a
collector in this process that only counts them. Each turn asks the same questions, one after the
other or several at once, and all sides must say the same. Run with `python benchmarks/tracing.py`;
needs no server. `--model table:7` shows the worst case, a model that takes no time.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from rich.table import Table

from paceline.cli import terminal
from paceline.cli.api import Answer, CoordinatorApi
from paceline.cli.bench.prompts import read_questions
from paceline.cli.config import ServeSettings
from paceline.cli.local_service import local_service
from paceline.config import read_settings

PROMPTS = Path(__file__).resolve().parent.parent / "tests" / "e2e" / "prompts.jsonl"
PAUSE_S = 0.3
SIDES = {"off": None, "10 %": "0.1", "100 %": "1.0"}
"""Of how many requests spans are recorded."""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Counts spans."""

    def __init__(self) -> None:
        self.num_spans = 0

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """One delivery."""
        self.num_spans += sum(
            len(scope.spans) for one in request.resource_spans for scope in one.scope_spans
        )
        return trace_service_pb2.ExportTraceServiceResponse()


def main() -> int:
    """Measure and print; 1 if the sides said different things."""
    options = _options()
    texts = [question.text for question in read_questions(options.prompts)][: options.limit]
    given = {"http_port": "0", "grpc_port": "0", "model": options.model}
    settings = read_settings(ServeSettings, {key: text for key, text in given.items() if text})
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    said: dict[str, list[list[int]]] = {}
    with collector() as (endpoint, counting), ExitStack() as running:
        apis = {}
        for side, share in SIDES.items():
            _set_variables(endpoint if share else None, share)
            service = running.enter_context(local_service(settings, terminal.messages))
            apis[side] = running.enter_context(CoordinatorApi(service.url))
        for turn in range(options.repeats + 1):  # the first one warms up
            first = turn % len(apis)
            for side, api in [*apis.items()][first:] + [*apis.items()][:first]:
                time.sleep(PAUSE_S)
                started = time.perf_counter()
                said[side] = _ask_all(api, texts, options)
                if turn:
                    seconds[side].append(time.perf_counter() - started)
        running.close()  # flushes
        num_spans = counting.num_spans
    num_tokens = sum(map(len, said["off"]))
    _print(seconds, num_tokens, num_spans)
    is_equal = all(said[one] == said[other] for one, other in pairwise(SIDES))
    terminal.results.print(f"All sides said the same: {is_equal}")
    return 0 if is_equal else 1


@contextmanager
def collector() -> Iterator[tuple[str, Collector]]:
    """A collector at an endpoint, as long as the context lasts."""
    counting = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(counting, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", counting
    finally:
        server.stop(0).wait()


def _set_variables(endpoint: str | None, share: str | None) -> None:
    """For the processes that start next."""
    for key in [key for key in os.environ if key.startswith("OTEL_")]:
        del os.environ[key]
    if endpoint and share:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        os.environ["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
        os.environ["OTEL_TRACES_SAMPLER_ARG"] = share


def _ask_all(api: CoordinatorApi, texts: list[str], options: argparse.Namespace) -> list[list[int]]:
    model = api.model()

    def ask(text: str) -> list[int]:
        answer = Answer()
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": options.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
        }
        api.stream("/v1/chat/completions", body, lambda text: None, answer)
        return answer.token_ids

    with ThreadPoolExecutor(options.concurrency) as clients:
        return list(clients.map(ask, texts))


def _print(seconds: dict[str, list[float]], num_tokens: int, num_spans: int) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("spans of", "tokens/s", "of off", "slowest turn", "fastest turn"):
        table.add_column(title, justify="left" if title == "spans of" else "right")
    off = median(seconds["off"])
    for side, taken in seconds.items():
        table.add_row(
            side,
            f"{num_tokens / median(taken):.1f}",
            f"{off / median(taken):.3f}",
            f"{num_tokens / max(taken):.1f}",
            f"{num_tokens / min(taken):.1f}",
        )
    terminal.results.print(table)
    terminal.results.print(f"{num_tokens} tokens a turn; {num_spans} spans arrived")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="as for paceline bench")
    parser.add_argument("--model", default="", help="as for paceline serve")
    parser.add_argument("--limit", type=int, default=8, help="prompts of a turn")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7, help="turns of each side")
    parser.add_argument("--concurrency", type=int, default=1, help="requests at the same time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
