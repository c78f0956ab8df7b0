"""Follows the EndpointSlices of one source: lists them, then watches from there.

A watch that breaks off goes on from the last version seen; one that is refused, or whose version
is too old (410), begins with a list. Whatever fails is tried again after a growing pause, with
credentials that are read anew, and what was seen stays until the server says otherwise.
"""

import time
from contextlib import aclosing
from typing import Any

from paceline.workers.discovery.endpoint import Sighting
from paceline.workers.discovery.kubernetes_api import (
    ApiCut,
    ApiRefusal,
    NoCredentials,
    SliceApi,
    SliceEvent,
    open_slice_api,
)
from paceline.workers.discovery.pauses import Pauses
from paceline.workers.discovery.slices import endpoints_of
from paceline.workers.discovery.source_names import KubernetesSource

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 20.0
STEADY_S = 1.0
"""A watch that ends sooner, and without a word, did not work."""
RESYNC_S = 600.0
"""After so long a list is made although nothing seems to be missing."""


class SliceWatch:
    """Keeps a sighting up to date."""

    def __init__(self, source: KubernetesSource, sighting: Sighting) -> None:
        self._source = source
        self._sighting = sighting
        self._slices: dict[str, dict[str, Any]] = {}
        self._version = ""
        """The watch goes on from here; empty: a list is due."""
        self._listed_at = 0.0
        self._pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    async def run(self) -> None:
        """Never ends."""
        while True:
            try:
                async with open_slice_api(self._source) as api:
                    while True:
                        await self._list_if_due(api)
                        await self._watch(api)
            except ApiRefusal as refusal:
                self._version = ""
                if not refusal.is_gone:
                    self._sighting.failed(str(refusal))
            except (ApiCut, NoCredentials) as error:
                self._sighting.failed(str(error))
            await self._pauses.sleep()

    async def _list_if_due(self, api: SliceApi) -> None:
        if self._version and time.monotonic() - self._listed_at < RESYNC_S:
            return
        listing = await api.list()
        self._listed_at = time.monotonic()
        self._slices, self._version = listing.slices, listing.version
        self._show()

    async def _watch(self, api: SliceApi) -> None:
        began = time.monotonic()
        has_worked = False
        async with aclosing(api.watch(self._version)) as events:
            async for event in events:
                if event is not None:
                    has_worked = True
                    self._pauses.reset()
                    self._take(event)
                self._show()
        if not has_worked and time.monotonic() - began < STEADY_S:
            raise ApiCut("the API server ends every watch at once")
        self._pauses.reset()

    def _take(self, event: SliceEvent) -> None:
        if event.kind == "DELETED":
            self._slices.pop(event.name, None)
        elif event.kind in ("ADDED", "MODIFIED"):
            self._slices[event.name] = event.slice
        self._version = event.version or self._version

    def _show(self) -> None:
        """Tell what is seen now; saying it again says that it is still so."""
        found = endpoints_of(self._slices.values(), self._source.port, self._sighting.endpoints)
        self._sighting.saw(found.endpoints, found.problem)
