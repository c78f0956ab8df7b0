"""The ranks of one group: how they meet, what they send one another, and how they notice an end.

A group lives and dies as a whole. What has not come within the time-out will not come: then, and
when a rank has ended, every other rank's next exchange raises `GroupBroken`, and its process should
end. gloo carries everything on CPUs; where the model is on GPUs, NCCL carries what layers exchange.

Sums are made in the order of ranks, from what all ranks send to all: an all-reduce adds in an order
that depends on the length of the message from three ranks on, so that a row would get other bits in
a pass of another width. Knows nothing about models and passes.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.engine.ranks.meeting import meet_others, say_complete
from paceline.engine.ranks.messages import Kind
from paceline.engine.ranks.place import GroupBroken, RankPlace
from paceline.errors import InvalidConfig

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 1800.0
"""How long a rank waits for the others to be there, and to have loaded; pods come as they can."""
TIMEOUT_S = 30.0
"""How long an exchange may take. Idle ranks hear from rank 0 every few seconds."""
CPU_BACKEND = "gloo"
CUDA_BACKEND = "cpu:gloo,cuda:nccl"
"""Messages stay on CPUs."""
MESSAGE_WORDS = 1024
"""Of every message, so that the others need not be told its length first; a longer one goes on in a
second one. Enough for the decoding of some hundred sequences."""

T = TypeVar("T")


class RankFailed(InvalidConfig):
    """Another rank cannot start; the message says which, and why."""


class RankGroup:
    """One process's end of its group."""

    def __init__(
        self,
        place: RankPlace,
        backend: str = CPU_BACKEND,
        timeout_s: float = TIMEOUT_S,
        join_timeout_s: float = JOIN_TIMEOUT_S,
    ) -> None:
        """Wait until all ranks are there.

        Raises:
            GroupBroken: they are not in time.
            InvalidConfig: they were told different things about the group, or its port is taken.
        """
        self.rank = place.rank
        self.size = place.size
        self.num_sharing_memory = place.local_size if backend == CPU_BACKEND else 1
        """Ranks whose models are in the same memory."""
        self.num_bytes_sent = 0
        """What this rank's exchanges have sent to the others, and received, since the start."""
        self.num_bytes_received = 0
        self._timeout_s = timeout_s
        logger.info("%s waits for the others at %s", place, place.meeting_point)
        join_timeout = timedelta(seconds=join_timeout_s)
        store = self._guarded(lambda: meet_others(place, join_timeout))
        self._guarded(
            lambda: dist.init_process_group(
                backend, store=store, rank=place.rank, world_size=place.size, timeout=join_timeout
            )
        )
        if place.rank == 0:
            self._guarded(lambda: say_complete(store))
        # With the short time-out; only loading, where ranks differ by minutes, uses the other.
        self._group = self._guarded(
            lambda: dist.new_group(backend=backend, timeout=timedelta(seconds=timeout_s))
        )

    def meet(self, facts: Sequence[tuple[str, str]] = (), error: str = "") -> None:
        """Go on when all ranks have come here; `facts` must be those of rank 0, by name and value.

        Raises:
            RankFailed: another rank brought an error, or was told something else than rank 0.
            GroupBroken: one has ended.
        """
        found: list[tuple[Sequence[tuple[str, str]], str] | None] = [None] * self.size
        self._guarded(lambda: dist.all_gather_object(found, (tuple(facts), error)))
        told = [item for item in found if item is not None]
        for rank, (_, message) in enumerate(told):
            if message and rank != self.rank:
                raise RankFailed(f"rank {rank} of the group cannot start: {message}")
        if error:
            return
        for rank, (others, _) in enumerate(told):
            for (name, expected), (_, value) in zip(told[0][0], others, strict=True):
                if value != expected:
                    raise RankFailed(
                        f"{name} is {value!r} at rank {rank}; expected {expected!r}, as at rank 0"
                    )

    def least(self, number: int) -> int:
        """The lowest of all ranks' numbers."""
        numbers = torch.tensor([number])
        self._guarded(lambda: dist.all_reduce(numbers, dist.ReduceOp.MIN, self._group))
        return int(numbers.item())

    def send(self, words: Sequence[int]) -> None:
        """Rank 0: give all others a message, numbers of 32 bits; returns when it is on its way."""
        message = torch.zeros(MESSAGE_WORDS, dtype=torch.int32)
        head = [len(words), *words[: MESSAGE_WORDS - 1]]
        message[: len(head)] = torch.tensor(head, dtype=torch.int32)
        self._broadcast(message)
        rest = words[MESSAGE_WORDS - 1 :]
        if rest:
            self._broadcast(torch.tensor(rest, dtype=torch.int32))

    def receive(self) -> list[int]:
        """Other ranks: the next message of rank 0."""
        message = torch.zeros(MESSAGE_WORDS, dtype=torch.int32)
        self._broadcast(message)
        num_words, *words = message.tolist()
        num_missing = num_words - len(words)
        if num_missing <= 0:
            return words[:num_words]
        rest = torch.zeros(num_missing, dtype=torch.int32)
        self._broadcast(rest)
        return [*words, *rest.tolist()]

    def states(self, state: int) -> list[int]:
        """Every rank's number, by rank."""
        return [int(part.item()) for part in self._gathered(torch.tensor([state]))]

    def sum_in_rank_order(self, x: Tensor) -> Tensor:
        """The sum of all ranks' `x`, in single precision at least, rounded once."""
        first, *others = self._gathered(x)
        total = first if first.dtype == torch.float64 else first.float()
        for part in others:
            total = total + part
        return total.to(x.dtype)

    def join_columns(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """All ranks' columns, `[N, sum of widths]`, in the order of ranks."""
        parts = self._gathered(_padded(x, max(widths)))
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)

    def collect_columns(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """At rank 0 as `join_columns`; elsewhere `x` itself, since nobody looks at it there."""
        padded = _padded(x, max(widths))
        parts = None
        if self.rank == 0:
            parts = [torch.empty_like(padded) for _ in widths]
        self._guarded(lambda: dist.gather(padded, parts, dst=0, group=self._group))
        size = padded.numel() * padded.itemsize
        if parts is None:
            self.num_bytes_sent += size
            return x
        self.num_bytes_received += (self.size - 1) * size
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)

    def tick(self) -> bool:
        """Rank 0: hear from every rank; whether one of them was told to stop.

        Every few seconds, so that the others know that rank 0 is there. Raises `GroupBroken`.
        """
        self.send([Kind.TICK])
        return any(self.states(0))

    def stop(self) -> None:
        """Rank 0: let the other ranks end."""
        self.send([Kind.STOP])
        self.close()

    def close(self) -> None:
        """Leave, when the others know it."""
        dist.destroy_process_group()

    def _broadcast(self, message: Tensor) -> None:
        self._guarded(lambda: dist.broadcast(message, src=0, group=self._group))
        size = message.numel() * message.itemsize
        if self.rank == 0:
            self.num_bytes_sent += (self.size - 1) * size
        else:
            self.num_bytes_received += size

    def _gathered(self, x: Tensor) -> list[Tensor]:
        x = x.contiguous()
        parts = [*x.new_empty((self.size, *x.shape)).unbind()]
        self._guarded(lambda: self._give_to_all(x, parts))
        size = (self.size - 1) * x.numel() * x.itemsize
        self.num_bytes_sent += size
        self.num_bytes_received += size
        return parts

    def _give_to_all(self, x: Tensor, parts: list[Tensor]) -> None:
        if x.device.type != "cpu":
            dist.all_gather(parts, x, group=self._group)
            return
        # gloo's own sends in a ring, one rank after the other, which takes two to three times as
        # long for the few rows of a pass (LOG.md).
        parts[self.rank].copy_(x)
        others = [rank for rank in range(self.size) if rank != self.rank]
        sends = [dist.P2POp(dist.isend, x, rank, self._group) for rank in others]
        receives = [dist.P2POp(dist.irecv, parts[rank], rank, self._group) for rank in others]
        works = dist.batch_isend_irecv([*sends, *receives])
        for rank, work in zip([*others, *others], works, strict=True):
            self._guarded(work.wait, rank)

    def _guarded(self, exchange: Callable[[], T], other: int | None = None) -> T:
        """What `exchange` returns; it is one with the rank `other`, or with several."""
        try:
            return exchange()
        except RuntimeError as error:  # what all of torch.distributed's errors are
            if self.size == 2:
                other = 1 - self.rank
            lost = (
                f"all {self.size} ranks of its group: one" if other is None else f"rank {other}: it"
            )
            reason = str(error).strip().partition("\n")[0]
            raise GroupBroken(
                f"rank {self.rank} cannot reach {lost} has ended, or has not answered for "
                f"{self._timeout_s:g} s ({reason})"
            ) from error


def _padded(x: Tensor, width: int) -> Tensor:
    """`x` with columns of zeros, so that all ranks' have one shape."""
    return x if x.shape[1] == width else torch.nn.functional.pad(x, (0, width - x.shape[1]))
