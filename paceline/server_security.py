"""Whom a server answers: the keys that its settings name, as their files are now."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from paceline.api_keys import ApiKeys
from paceline.followed_files import FollowedFiles
from paceline.security_settings import SecuritySettings


@dataclass(frozen=True)
class ServerSecurity:
    """What a server asks its callers for; of nobody anything unless it is told."""

    keys: ApiKeys | None = None

    @classmethod
    def of(cls, settings: SecuritySettings) -> Self:
        """As the settings say; raises `InvalidConfig` for a file that cannot be used."""
        return cls(keys=ApiKeys(settings.api_keys_file) if settings.api_keys_file else None)

    def follow(self) -> list["asyncio.Task[Any]"]:
        """Keep up with what changes in the files, until the tasks are cancelled."""
        return [asyncio.create_task(file.follow()) for file in self._files()]

    def _files(self) -> Sequence[FollowedFiles[Any]]:
        return [self.keys.file] if self.keys else []


OPEN = ServerSecurity()
"""Asks for nothing."""
