"""Who may call a service: settings that coordinator, drafts and targets have in common.

Invariant: nothing listens where others can reach it without asking callers who they are, unless
the settings say so in so many words.
"""

import ipaddress
from typing import Self

from pydantic import model_validator

from paceline.config import ServiceSettings


class SecuritySettings(ServiceSettings):
    """Where a service listens, and whom it answers."""

    host: str = "127.0.0.1"
    """Address to listen on. The default admits this machine only; for any other, callers have to
    be authenticated."""

    api_keys_file: str = ""
    """File of the keys that callers may show, one in a line, `key` or `name: key`; read anew when
    it changes. Empty: no key is asked for."""

    allow_unauthenticated: bool = False
    """Listen where others can reach it without asking callers who they are. For networks that keep
    strangers out by other means."""

    @model_validator(mode="after")
    def _strangers_are_kept_out(self) -> Self:
        if self.api_keys_file or self.allow_unauthenticated or is_loopback(self.host):
            return self
        raise ValueError(
            f"--host (PACELINE_HOST) is {self.host!r}, where others can reach it, and callers are "
            "not authenticated; expected --api-keys-file (PACELINE_API_KEYS_FILE), or "
            "--allow-unauthenticated true where something else keeps strangers out"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False
