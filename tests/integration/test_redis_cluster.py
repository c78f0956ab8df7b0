"""Records in a cluster, where every key has its node."""

from contextlib import ExitStack
from pathlib import Path

from authority import Authority
from ports import HOST, number_of, reserve_port
from redis_server import ManagedRedis, tls_options
from session_stores import generation, recorded, store_at, until

from coordinator.redis_access import RedisSettings, access_to_redis
from coordinator.session_store import open_session_store


def in_order(nodes: list[ManagedRedis]) -> bool:
    """Whether they all know who has what, and answer."""
    for node in nodes:
        with node.client() as client:
            if b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                return False
    return True


async def test_a_cluster_over_tls_keeps_each_record_on_one_node(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("coordinator", "coordinator")
    (tmp_path / "password").write_text("secret")
    options = tls_options(authority, authority.issue("redis", HOST))
    options |= {"tls_cluster": "yes", "cluster_enabled": "yes", "requirepass": "secret"}
    with ExitStack() as stack:
        ports = [number_of(stack.enter_context(reserve_port())) for _ in range(4)]
        nodes = [
            stack.enter_context(ManagedRedis(bind=HOST, tls_port=port, cluster_port=bus, **options))
            for port, bus in (ports[:2], ports[2:])
        ]
        for node, slots in zip(nodes, ((0, 8191), (8192, 16383)), strict=True):
            with node.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
                client.execute_command("CLUSTER", "MEET", HOST, *ports[:2])
        await until(lambda: in_order(nodes))
        settings = RedisSettings(
            redis_url=f"rediss+cluster://{HOST}:{ports[0]}",
            redis_password_file=str(tmp_path / "password"),
            redis_tls_ca_file=authority.ca_file,
            redis_tls_certificate_file=own.certificate,
            redis_tls_private_key_file=own.private_key,
        )
        access = access_to_redis(settings)
        store = await open_session_store(settings.redis_url, access=access)
        await until(lambda: store.status == "redis")
        for index in range(8):
            lease = await store.open(generation(f"r{index}"))
            store.append(lease, 0, [1, 2])
            await recorded(lease, 2)
        await store.aclose()
        sizes = []
        for node in nodes:
            with node.client() as client:
                sizes.append(len(client.keys("{paceline:r*}:*")))
        assert sum(sizes) == 3 * 8
        assert all(size and size % 3 == 0 for size in sizes)

        urls = [node.url.replace("unix://", "unix://:secret@") for node in nodes]
        async with store_at(urls[0]) as alone, store_at(urls[1]) as other:
            for index in range(8):
                await alone.open(generation(f"s{index}"))
                await other.open(generation(f"s{index}"))
            trouble = "redis (part of a cluster: use redis+cluster://: in memory for now)"
            assert {alone.status, other.status} == {trouble}
