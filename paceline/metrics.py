"""What a process counts, for Prometheus to fetch: names, buckets, formats and the port.

Every name begins with `paceline_` and goes on as vLLM's where vLLM has such a thing, so that its
dashboards need one other prefix. What others count anyway (a device thread, a cache, a pool) is
read when it is fetched, so that it costs the rounds nothing. Knows no service.

Invariant: labels are few. Their values are known beforehand or bounded (`Few`), never an id.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from paceline import __version__
from paceline.addresses import with_port
from paceline.errors import InvalidConfig

PREFIX = "paceline_"

# Those that the OpenTelemetry conventions for generative AI advise.
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.4, 0.5, 0.75, 1.0, 2.5),
)
REQUEST_BUCKETS = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
PART_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
"""For the parts of a round, from a copied draft to a long prefill."""

MAX_LABEL_VALUES = 16
LAG_PERIOD_S = 0.25
"""How often the event loop is asked how late it is: 4 wake-ups a second cost nothing."""

Values = Mapping[tuple[str, ...], float]
"""By the values of the labels."""


class Few:
    """Keeps the values of a label few: the first ones are kept, any further is `other`."""

    def __init__(self, limit: int = MAX_LABEL_VALUES) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value to use as a label."""
        if value not in self._known:
            if len(self._known) >= self._limit:
                return "other"
            self._known.add(value)
        return value


@dataclass(frozen=True, slots=True)
class Instrument:
    """What the table of instruments says of one."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    labels: tuple[str, ...]
    text: str

    @property
    def unit(self) -> str:
        """The base unit, which the name ends with."""
        stem = self.name.removesuffix("_total")
        if stem.endswith("_perc"):  # vLLM's word for it
            return "ratio"
        found = stem.rpartition("_")[2]
        return found if found in ("seconds", "bytes", "tokens") else ""


class Calls(Protocol):
    """What is counted of gRPC calls (`paceline.call_counts`)."""

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Running ones by method."""

    @property
    def ended(self) -> Mapping[tuple[str, ...], int]:
        """By method and status."""


class Instruments:
    """The instruments of one process, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.described: list[Instrument] = []
        """All of them, in the order in which they were made."""
        self.loop_lag = self.histogram(
            "event_loop_lag_seconds",
            "How much later than due the event loop ran a timer: what every stream waits.",
            PART_BUCKETS,
        )

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter; `name` without `_total`."""
        self._describe("counter", f"{name}_total", labels, text)
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A gauge."""
        self._describe("gauge", name, labels, text)
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        """A histogram."""
        self._describe("histogram", name, labels, text)
        return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self.registry)

    def shown_counter(
        self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Values]
    ) -> None:
        """A counter that is kept elsewhere and read when it is fetched."""
        self._describe("counter", f"{name}_total", labels, text)
        self.registry.register(
            _Shown(lambda: CounterMetricFamily(PREFIX + name, text, labels=labels), read)
        )

    def shown_gauge(
        self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Values]
    ) -> None:
        """A gauge that is kept elsewhere and read when it is fetched."""
        self._describe("gauge", name, labels, text)
        self.registry.register(
            _Shown(lambda: GaugeMetricFamily(PREFIX + name, text, labels=labels), read)
        )

    def show_build(self, service: str, read: Callable[[], Mapping[str, str]]) -> None:
        """`paceline_build_info`; `read` gives model, drafter and numerics, as far as known."""
        labels = ("service", "version", "model", "drafter", "numerics")
        text = "What runs here; 1."
        self._describe("info", "build_info", labels, text)

        def family() -> Iterator[InfoMetricFamily]:
            said = {"service": service, "version": __version__, **read()}
            yield InfoMetricFamily(f"{PREFIX}build", text, {name: said[name] for name in labels})

        self.registry.register(_Made(family))

    def show_calls(self, calls: "Calls") -> None:
        """The gRPC calls of this process."""
        self.shown_gauge(
            "grpc_calls_in_flight",
            "gRPC calls that run; streams between services last as long as they are connected.",
            ("method",),
            lambda: {(method,): number for method, number in dict(calls.in_flight).items()},
        )
        self.shown_counter(
            "grpc_calls",
            "gRPC calls that ended, by their status; `CANCELLED` is a caller that left.",
            ("method", "code"),
            lambda: dict(calls.ended),
        )

    async def fetched(self, accept: str) -> tuple[bytes, str]:
        """Everything in the format that an `Accept` header asks for, and its content type.

        Read on the event loop, whose state it may be, and written on a thread beside it. Exemplars
        exist in OpenMetrics only.
        """
        encode, content_type = choose_encoder(accept)
        now = _Read(list(self.registry.collect()))
        return await asyncio.to_thread(encode, now), content_type

    async def watch_loop(self) -> NoReturn:
        """Measure how late the event loop is, for ever."""
        while True:
            due = time.perf_counter() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self.loop_lag.observe(max(0.0, time.perf_counter() - due))

    def _describe(
        self,
        kind: Literal["counter", "gauge", "histogram", "info"],
        name: str,
        labels: tuple[str, ...],
        text: str,
    ) -> None:
        self.described.append(Instrument(PREFIX + name, kind, labels, text))


class _Made(Collector):
    """Families that are made when they are fetched."""

    def __init__(self, families: Callable[[], Iterator[InfoMetricFamily]]) -> None:
        self._families = families

    def collect(self) -> Iterator[InfoMetricFamily]:
        """What it is now."""
        return self._families()


class _Shown(Collector):
    """One family whose values are kept elsewhere."""

    def __init__(
        self,
        family: Callable[[], CounterMetricFamily | GaugeMetricFamily],
        read: Callable[[], Values],
    ) -> None:
        self._family = family
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """What it is now."""
        family = self._family()
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        yield family


class _Read(Collector):
    """Families that have been collected."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Those."""
        return self._families


class MetricsServer:
    """`/metrics` of a process without an HTTP server of its own, on threads of its own.

    A scrape takes some milliseconds there, in which event loop and device thread go on.
    """

    def __init__(self, instruments: Instruments, host: str, port: int) -> None:
        """Listen; raises `InvalidConfig` if that does not work."""
        try:
            self._server, self._thread = start_http_server(port, host, instruments.registry)
        except OSError as error:
            message = f"metrics_port: cannot listen on {with_port(host, port)}: {error.strerror}."
            raise InvalidConfig(message) from error
        self.url = f"http://{with_port(host, self._server.server_port)}/metrics"
        self._lag = asyncio.create_task(instruments.watch_loop())

    async def stop(self) -> None:
        """Listen no more."""
        self._lag.cancel()
        with suppress(asyncio.CancelledError):
            await self._lag
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        self._thread.join()
