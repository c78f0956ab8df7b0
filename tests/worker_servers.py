"""Real gRPC servers of all three services in this process, on the table model."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fed_drafter import FedDrafter
from tree_drafter import TreeDrafter, by_the_law
from waiting import SOON_S, until

from coordinator.admission import Limits
from coordinator.generator import Generator
from coordinator.memory_store import MemoryStore
from coordinator.metrics import Metrics
from coordinator.requests import Generation, GenerationRequest
from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.metrics import DraftMetrics
from draft_service.proposer import Drafter, Proposer
from draft_service.servicer import DraftServicer
from paceline.engine.device_worker import DeviceWorker, device_thread
from paceline.engine.grammar import Grammars
from paceline.engine.stepper import Stepper
from paceline.engine.table_model import TableLaw, TableModel
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.engine.tokenizer_files import tokenizer_digest
from paceline.rounds import WorkerInfo, WorkerLoad
from paceline.server import GrpcServer
from paceline.server_security import OPEN
from paceline.telemetry.tracer import NOT_TRACED, Tracer
from paceline.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server
from paceline.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from paceline.workers.pool import WorkerPool
from target_service.metrics import TargetMetrics
from target_service.servicer import TargetServicer
from target_service.verifier import Verifier, VerifierLimits

SEED = 7
LAW = TableLaw(SEED)
TOKENIZER_FILES = table_tokenizer_files()
GRAMMARS = Grammars.of_tokenizer(TOKENIZER_FILES, LAW.vocab_size)
INFO = WorkerInfo(
    instance_id="",
    version="1.2.3",
    model=f"table:{SEED}",
    numerics="table",
    tokenizer_digest=tokenizer_digest(TOKENIZER_FILES),
    vocab_size=LAW.vocab_size,
    max_model_len=4096,
    max_speculative_tokens=16,
    feature_layers=(0,),
    feature_size=2,
)

AddService = partial[None]
Build = Callable[[], tuple[Stepper[Any, Any], Callable[[DeviceWorker[Any, Any]], AddService]]]


class WorkerServer:
    """A draft or target worker; can be killed, and started again at its address."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self.security = OPEN
        self._port = 0
        self._server: GrpcServer | None = None
        self._stepper: Stepper[Any, Any]
        self._worker: DeviceWorker[Any, Any]
        self._add_service: AddService

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def load(self) -> WorkerLoad:
        """The state of the worker that runs now."""
        return self._stepper.load

    @property
    def kv_cache(self) -> Any:
        """Of a target that runs now."""
        return self._stepper._model.kv_cache  # type: ignore[attr-defined]

    def take_address_of(self, other: "WorkerServer") -> None:
        """Be started where that one was."""
        self._port = other._port

    async def start(self) -> None:
        self._stepper, add_to = self._build()
        self._worker = DeviceWorker(self._stepper, device_thread("device"))
        self._add_service = add_to(self._worker)
        self._server = GrpcServer("worker", self._add_service, security=self.security)
        self._port = await self._server.start("127.0.0.1", self._port)
        self._worker.start()

    async def leave(self, drain_seconds: float) -> None:
        """End it as a signal does."""
        (servicer,) = self._add_service.args
        await servicer.drain(drain_seconds)
        await self.kill()

    async def kill(self) -> None:
        """End it at once, with all that it knew."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
            await asyncio.to_thread(self._worker.stop)

    async def until_free(self) -> None:
        """Return when it holds no sequence and no KV."""
        await until(lambda: not (self.load.num_sequences or self.load.kv_used))


def target_server(
    law: TableLaw = LAW,
    *,
    info: WorkerInfo = INFO,
    limits: VerifierLimits | None = None,
    tracer: Tracer = NOT_TRACED,
    **room: int,
) -> WorkerServer:
    """A target worker of the table model."""

    def build() -> tuple[Verifier, Callable[[DeviceWorker[Any, Any]], AddService]]:
        model = TableModel(law, **room)
        verifier = Verifier(model, limits or VerifierLimits(), GRAMMARS)
        fresh = replace(info, instance_id=secrets.token_hex(8), max_model_len=verifier.max_length)

        def add_to(worker: DeviceWorker[Any, Any]) -> AddService:
            metrics = TargetMetrics(worker, verifier.passes, model.kv_cache, fresh)
            servicer = TargetServicer(worker, fresh, TOKENIZER_FILES, metrics, tracer)
            return partial(add_TargetServiceServicer_to_server, servicer)

        return verifier, add_to

    return WorkerServer(build)


def draft_server(
    drafter: str,
    law: TableLaw = LAW,
    make_model: Callable[[TableLaw], TableModel] = TableModel,
    make_drafter: Callable[[], Drafter] | None = None,
    tracer: Tracer = NOT_TRACED,
    **changes: Any,
) -> WorkerServer:
    """A draft worker: what `make_drafter` makes, or by its name `suffix`, `fed`, `hybrid`, `trees`,
    or any other name for one that runs a table model."""
    info = replace(INFO, drafter=drafter)
    if drafter != "fed":
        info = replace(info, feature_layers=(), feature_size=0)
    info = replace(info, **changes)
    if drafter == "suffix":
        info = replace(info, model="", tokenizer_digest="", vocab_size=0, max_model_len=0)

    def build() -> tuple[Proposer, Callable[[DeviceWorker[Any, Any]], AddService]]:
        method: Drafter
        match drafter:
            case _ if make_drafter is not None:
                method = make_drafter()
            case "suffix":
                method = SuffixDrafter()
            case "hybrid":
                model = ModelDrafter(make_model(law), GRAMMARS)
                method = HybridDrafter(model, SuffixDrafter(model.table))
            case "fed":
                method = FedDrafter(law)
            case "trees":
                method = TreeDrafter(by_the_law(law), law.vocab_size)
            case _:
                method = ModelDrafter(make_model(law), GRAMMARS)
        proposer = Proposer(method, 16, info.feature_size)

        def add_to(worker: DeviceWorker[Any, Any]) -> AddService:
            servicer = DraftServicer(
                worker, info, DraftMetrics(worker, proposer.passes, info), tracer
            )
            return partial(add_DraftServiceServicer_to_server, servicer)

        return proposer, add_to

    return WorkerServer(build)


@dataclass
class Cluster:
    """Workers and a generator on top of them."""

    targets: list[WorkerServer]
    drafts: list[WorkerServer]
    pool: WorkerPool
    generator: Generator
    metrics: Metrics

    async def until_ready(self, num_workers: int | None = None) -> None:
        """Return when so many workers take rounds, or all."""
        wanted = len(self.targets) + len(self.drafts) if num_workers is None else num_workers
        async with asyncio.timeout(SOON_S):
            while len(self.pool.ready_targets()) + len(self.pool.ready_drafts()) < wanted:
                await self.pool.until_changed()
            await self.generator.load_tokenizer()

    async def until_refused(self, draft: int) -> str:
        """Why the draft of this number does not fit the target, once that is known."""
        async with asyncio.timeout(SOON_S):
            while "the target" not in (reason := self.pool.drafts[draft].reason):
                await self.pool.until_changed()
        return reason

    async def until_free(self) -> None:
        """Return when no worker holds anything."""
        for server in (*self.targets, *self.drafts):
            await server.until_free()


@asynccontextmanager
async def cluster(
    targets: Iterable[WorkerServer],
    drafts: Iterable[WorkerServer] = (),
    limits: Limits | None = None,
    sources: tuple[list[str], list[str]] | None = None,
) -> AsyncIterator[Cluster]:
    """Start the workers and connect a generator to them; end everything.

    With `sources` it looks for workers there, and not at the addresses of these.
    """
    servers = [*targets], [*drafts]
    async with AsyncExitStack() as running:
        for server in (*servers[0], *servers[1]):
            running.push_async_callback(server.kill)  # also when one of the others does not start
            await server.start()
        addresses = tuple([server.address for server in role] for role in servers)
        pool = WorkerPool(*(sources or addresses))
        running.push_async_callback(pool.stop)
        pool.start()
        metrics = Metrics()
        generator = Generator(pool, MemoryStore(), metrics, limits or Limits())
        yield Cluster(*servers, pool, generator, metrics)


@dataclass
class Answer:
    """An answer as its client puts it together."""

    generation: Generation
    token_ids: list[int]
    text: str
    finish_reason: str


async def answer(generator: Generator, request: GenerationRequest) -> Answer:
    """All of one answer."""
    generation = await generator.prepare(request)
    return await rest_of(generator, generation)


async def rest_of(generator: Generator, generation: Generation) -> Answer:
    """All of a generation that has been admitted."""
    result = Answer(generation, [], "", "")
    async for step in generator.stream(generation):
        result.token_ids += step.token_ids
        result.text += step.text
        result.finish_reason = step.finish_reason.value if step.finish_reason else ""
    return result


async def answer_with_accidents(
    running: Cluster, request: GenerationRequest, *accidents: Callable[[], Awaitable[None]]
) -> Answer:
    """An answer in the course of which these things happen, from the fifth token on."""
    generation = await running.generator.prepare(request)
    result = Answer(generation, [], "", "")
    waiting = list(accidents)
    async with aclosing(running.generator.stream(generation)) as steps:
        async for step in steps:
            result.token_ids += step.token_ids
            result.text += step.text
            if waiting and len(result.token_ids) >= 5:
                await waiting.pop(0)()
    assert not waiting, "the answer was over too soon"
    return result
