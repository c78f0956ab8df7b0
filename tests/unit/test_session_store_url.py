"""Which store a setting asks for, and settings that cannot be meant."""

import pytest
from session_stores import generation, store_at

from coordinator.redis_access import RedisSettings
from coordinator.session_store import open_session_store
from paceline.config import read_settings
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
        ("rediss://host?ssl_cert_reqs=none", "settings of their own: redis_tls_…"),
        ("redis+sentinel://host:1,host:2", "the service's name is missing"),
        ("redis+sentinel://host:1/master/first", "database 'first' is not a number"),
        ("redis+sentinel://host:1/master?db=1", "'db=1' means nothing to Sentinels"),
        ("redis+cluster://host:1/2", "'db' must be 0"),
        ("unix+sentinel://host/master", "scheme 'unix' has no Sentinel"),
    ],
)
async def test_a_url_that_cannot_be_meant_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        await open_session_store(url)
    start = f"--redis-url (PACELINE_REDIS_URL) is {url!r}, which cannot be used: "
    assert caught.value.message.startswith(start)
    assert "Expected for example redis://" in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:secret@host/first",
        "redis://:secret@host:port",
        "redis://:secret/with@host",
        "redis://:#secret@host",
        "redis://:[secret]@host",
        "redis+sentinel://user:secret@host:1",
        "unix:///socket?password=secret&colour=red",
    ],
)
async def test_a_refused_url_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(InvalidConfig, match="--redis-url") as caught:
        await open_session_store(url)
    assert "secret" not in caught.value.message
    with pytest.raises(InvalidConfig, match="--redis-tls-ca-file|--redis-url") as caught:
        read_settings(RedisSettings, {"redis_url": url, "redis_tls_ca_file": "/ca"})
    assert "secret" not in caught.value.message


async def test_without_a_url_records_are_in_memory() -> None:
    async with store_at("") as store:
        assert store.status == "memory"
        lease = await store.open(generation())
        store.append(lease, 0, [1])
        resumed = await store.takeover("r")
        assert resumed is not None
        assert resumed.token_ids == (1,)
