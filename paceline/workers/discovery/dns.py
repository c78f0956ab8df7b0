"""Follows the addresses of a DNS name, such as that of a headless Service.

A name cannot say why an address is missing: gone, about to go, or not ready for a moment. So an
address that is no longer listed gets no new sequences, and is dropped once its worker is lost. An
answer that there is no such name, or that it has no address, is believed when it comes
`CONFIRMATIONS` times in a row; a resolver that fails takes nothing back. Where a name has IPv4 and
IPv6 addresses, only the former count, since both would be the same workers twice.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from paceline.addresses import with_port
from paceline.workers.discovery.endpoint import Endpoint, Sighting
from paceline.workers.discovery.source_names import DnsSource

INTERVAL_S = 5.0
"""Between two questions. Records of a Service live for 5 to 30 s."""
SOONER_S = 1.0
"""The same after a worker was lost, or while an answer is to be confirmed."""
CONFIRMATIONS = 3
"""A name server that has just started knows of nothing for a moment."""
UNLISTED = "its name lists it no more"

Lookup = Callable[[str, int], Awaitable[list[str]]]
"""The IP addresses of a name, `NoSuchName`, or `OSError` when nobody can tell."""


class NoSuchName(Exception):
    """The name does not exist, or has no address."""


class DnsFollower:
    """Asks again and again."""

    def __init__(
        self, source: DnsSource, sighting: Sighting, look_up: Lookup | None = None
    ) -> None:
        self._source = source
        self._sighting = sighting
        self._look_up = look_up or _Resolver().look_up
        self._num_denials = 0
        self._lost: set[str] = set()
        self._must_hurry = asyncio.Event()

    def worker_lost(self, address: str) -> None:
        """The worker there is out of reach: ask soon whether it still should be there.

        It is told again as long as the worker stays so.
        """
        if any(endpoint.address == address for endpoint in self._sighting.endpoints):
            self._lost.add(address)
            self._must_hurry.set()

    async def run(self) -> None:
        """Never ends."""
        while True:
            await self._ask()
            await asyncio.sleep(SOONER_S)
            if not self._num_denials:
                try:
                    async with asyncio.timeout(INTERVAL_S - SOONER_S):
                        await self._must_hurry.wait()
                except TimeoutError:
                    pass
            self._must_hurry.clear()

    async def _ask(self) -> None:
        lost, self._lost = self._lost, set()
        try:
            addresses = await self._look_up(self._source.host, self._source.port)
        except NoSuchName:
            self._num_denials += 1
            if self._num_denials < CONFIRMATIONS:
                self._sighting.failed("the name has no address; asking again to be sure")
                return
            self._num_denials = 0
            self._see([], lost, "the name has no address")
        except OSError as error:
            self._sighting.failed(f"cannot be resolved: {error.strerror or error}")
        else:
            self._num_denials = 0
            self._see(addresses, lost)

    def _see(self, addresses: list[str], lost: set[str], problem: str = "") -> None:
        listed = [with_port(address, self._source.port) for address in sorted(set(addresses))]
        unlisted = [
            Endpoint(endpoint.address, closed=UNLISTED)
            for endpoint in self._sighting.endpoints
            if endpoint.address not in listed and endpoint.address not in lost
        ]
        self._sighting.saw([*map(Endpoint, listed), *unlisted], problem)


class _Resolver:
    """The system's resolver, in a thread of its own: it may take its time, others must not wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "dns")

    async def look_up(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, _resolve, host, port)
        except socket.gaierror as error:
            if error.errno in _DENIALS:
                raise NoSuchName from error
            raise
        ipv4 = [address for family, address in found if family == socket.AF_INET]
        return ipv4 or [address for _, address in found]


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, str(address[0])) for family, _, _, _, address in found]


_DENIALS = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
