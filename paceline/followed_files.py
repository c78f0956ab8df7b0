"""Files whose content may change while a process runs: mounted secrets, certificates, keys.

Content is compared, once a second and on another thread: a mounted Secret is swapped as a whole by
a symbolic link, and other tools write in place. What cannot be used is told once, and what was read
before stays in use. Knows nothing about what the files say, and tells nothing of it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, NoReturn, TypeVar

from paceline.errors import InvalidConfig

logger = logging.getLogger(__name__)

POLL_S = 1.0

T = TypeVar("T")


class FollowedFiles(Generic[T]):
    """What some files say now, or did when they last made sense."""

    def __init__(self, paths: Sequence[str], parse: Callable[[Sequence[bytes]], T]) -> None:
        """Read them; raises `InvalidConfig`, as `parse` does for content that cannot be used."""
        self._paths = tuple(paths)
        self._parse = parse
        self._content = _read(self._paths)
        self.value = parse(self._content)
        self._listeners: list[Callable[[T], None]] = []
        self._trouble = ""

    def on_change(self, listener: Callable[[T], None]) -> None:
        """Call this with every new value, on the event loop."""
        self._listeners.append(listener)

    async def follow(self) -> NoReturn:
        """Look again and again, whatever goes wrong with one look."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.look()
            except Exception:
                logger.exception("cannot take over %s", ", ".join(self._paths))

    async def look(self) -> None:
        """Take over what has changed, if it can be used."""
        try:
            changed = await asyncio.to_thread(self._read_anew)
        except InvalidConfig as error:
            if error.message != self._trouble:
                logger.error("%s What was read before stays in use.", error.message)
            self._trouble = error.message
            return
        self._trouble = ""
        if changed is not None:
            self._content, self.value = changed
            logger.info("read anew: %s", ", ".join(self._paths))
            for listener in self._listeners:
                listener(self.value)

    def _read_anew(self) -> tuple[tuple[bytes, ...], T] | None:
        content = _read(self._paths)
        return None if content == self._content else (content, self._parse(content))


def _read(paths: Sequence[str]) -> tuple[bytes, ...]:
    content = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                content.append(file.read())
        except OSError as error:
            message = f"the file {path} cannot be read: {error.strerror}."
            raise InvalidConfig(message) from None
    return tuple(content)
