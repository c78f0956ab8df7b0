"""Which store a setting asks for, and settings that cannot be meant."""

import pytest
from session_stores import generation, store_at

from coordinator.session_store import open_session_store
from paceline.errors import InvalidConfig


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://host:6379", "must specify one of the following schemes"),
        ("host:6379", "must specify one of the following schemes"),
        ("redis://host:port", "Port could not be cast"),
        ("redis://host/first", "database 'first' is not a number"),
        ("redis://host?colour=red", "colour"),
        ("redis://host?socket_timeout=long", "Invalid value for 'socket_timeout'"),
        ("redis+magic://host", "unknown scheme"),
        ("redis+sentinel://host:1,host:2", "the master's name is missing"),
        ("unix+sentinel://host/master", "scheme 'unix' has no Sentinel"),
    ],
)
async def test_a_url_that_cannot_be_meant_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        await open_session_store(url)
    assert caught.value.message.startswith(f"redis_url {url!r} cannot be used: ")
    assert "Expected for example redis://" in caught.value.message


async def test_a_refused_url_is_shown_without_its_password() -> None:
    with pytest.raises(InvalidConfig) as caught:
        await open_session_store("redis://user:secret@host/first")
    assert "secret" not in caught.value.message
    assert "redis://…@host/first" in caught.value.message


async def test_without_a_url_records_are_in_memory() -> None:
    async with store_at("") as store:
        assert store.status == "memory"
        lease = await store.open(generation())
        store.append(lease, 0, [1])
        resumed = await store.takeover("r")
        assert resumed is not None
        assert resumed.token_ids == (1,)
