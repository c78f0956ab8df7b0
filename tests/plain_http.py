"""Clients of services without TLS.

They read no list of authorities, as others do: that takes longer than most requests.
"""

from typing import Any

import httpx
from waiting import SOON_S


def plain_client(url: str = "", **options: Any) -> httpx.AsyncClient:
    """One that waits as long as anything may take."""
    options = {"timeout": SOON_S, **options}
    return httpx.AsyncClient(base_url=url, trust_env=False, verify=False, **options)


def plain_get(url: str, **options: Any) -> httpx.Response:
    """What is there."""
    options = {"timeout": SOON_S, **options}
    return httpx.get(url, trust_env=False, verify=False, **options)
