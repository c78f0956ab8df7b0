"""A way to a server that can be made long, or lead to another one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path


class Relay:
    """An address that leads whoever comes next to `path`, as that of a Service changes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.delay_s = 0.0
        """How long each message is on its way to the server."""
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def at(self, own_path: Path) -> AsyncIterator[None]:
        """Listen inside, at a socket file."""
        async with await asyncio.start_unix_server(self._accept, own_path):
            yield
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        others_reader, others_writer = await asyncio.open_unix_connection(self.path)
        with closing(writer), closing(others_writer):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, others_writer, is_delayed=True))
                tasks.create_task(self._pass_on(others_reader, writer, is_delayed=False))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_delayed: bool
    ) -> None:
        while data := await reader.read(1 << 16):
            if is_delayed:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
        writer.close()
        await writer.wait_closed()
