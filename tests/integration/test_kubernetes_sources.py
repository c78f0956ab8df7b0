"""What a Kubernetes source sees of a server that behaves and misbehaves like the real one."""

from pathlib import Path

import pytest
from kubernetes_api import KubernetesApi
from kubernetes_objects import endpoint, endpoint_slice
from seen_sources import seeing
from session_stores import until

from paceline.workers.discovery import kubernetes_api, kubernetes_watch
from paceline.workers.discovery.endpoint import Endpoint
from paceline.workers.discovery.slices import NOT_READY, TERMINATING

A, B, C = "10.0.0.1:5001", "10.0.0.2:5001", "10.0.0.3:5001"


async def test_pods_are_seen_as_they_come_change_and_go(api: KubernetesApi) -> None:
    api.put_pod("draft", A, uid="a")
    api.put_pod("target", B)
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        api.put_pod("draft", C, uid="c")
        await seen.until_addresses(A, C)
        api.put_pod("draft", A, ready=False, serving=True, terminating=True)
        await until(lambda: Endpoint(A, "a", TERMINATING) in seen.endpoints)
        api.put_pod("draft", C, ready=False, serving=False)
        await until(lambda: Endpoint(C, "c", NOT_READY) in seen.endpoints)
        assert (seen.state.num_open, seen.state.num_closed) == (0, 2)
        api.delete_pod("draft", A)
        await seen.until_addresses(C)
        api.delete_pod("draft", C)
        await seen.until_addresses()
        assert (api.num_lists, api.num_watches) == (1, 1)


async def test_a_change_of_the_largest_slice_that_there_can_be_is_seen(api: KubernetesApi) -> None:
    async with seeing("kubernetes://draft") as seen:
        await until(lambda: api.num_watchers == 1)
        pods = [endpoint(f"10.0.{i // 250}.{i % 250}", uid=f"{i:0200}") for i in range(1000)]
        api.put_slice(endpoint_slice("draft-1", pods))
        await until(lambda: len(seen.endpoints) == 1000)


async def test_a_selector_finds_the_pods_of_several_services(api: KubernetesApi) -> None:
    labels = {"app.kubernetes.io/component": "draft"}
    api.put_pod("fast", A, labels={**labels, "pool": "fast"})
    api.put_pod("slow", B, labels={**labels, "pool": "slow"})
    api.put_pod("odd", C, labels={**labels, "pool": "odd"}, namespace="elsewhere")
    both = "kubernetes://?selector=app.kubernetes.io/component=draft"
    some = both + "&selector=pool in (slow%2Codd)"
    async with seeing(both) as seen, seeing(some) as seen_some:
        await seen.until_addresses(A, B)
        await seen_some.until_addresses(B)
        api.put_pod("slow", B, labels={**labels, "pool": "other"})
        await seen_some.until_addresses()
        assert seen.addresses == [A, B]
    async with seeing(both.replace("://", "://elsewhere")) as seen:
        await seen.until_addresses(C)


async def test_a_slice_that_goes_takes_only_what_no_other_one_has(api: KubernetesApi) -> None:
    pods = [endpoint(f"10.0.0.{n}", uid=f"uid-{n}") for n in range(1, 4)]
    api.put_slice(endpoint_slice("one", pods[:2]))
    api.put_slice(endpoint_slice("two", pods[1:]))
    async with seeing("kubernetes://draft") as seen:
        first, second, third = (f"10.0.0.{n}:50051" for n in range(1, 4))
        await seen.until_addresses(first, second, third)
        api.delete_slice("one")
        await seen.until_addresses(second, third)


async def test_a_pod_with_two_address_families_is_one_worker_and_stays_where_it_is(
    api: KubernetesApi,
) -> None:
    api.put_slice(endpoint_slice("six", [endpoint("fd00::1", uid="a")]))
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses("[fd00::1]:50051")
        changes = seen.num_changes
        api.put_slice(endpoint_slice("four", [endpoint("10.0.0.1", uid="a")]))
        api.put_slice(endpoint_slice("four-b", [endpoint("10.0.0.2", uid="b")]))
        await seen.until_addresses("10.0.0.2:50051", "[fd00::1]:50051")
        assert seen.num_changes == changes + 1
        api.delete_slice("six")
        await seen.until_addresses("10.0.0.1:50051", "10.0.0.2:50051")


async def test_a_watch_that_breaks_off_goes_on_from_the_last_version_seen(
    api: KubernetesApi,
) -> None:
    api.put_pod("draft", A)
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        api.put_pod("draft", B)
        await seen.until_addresses(A, B)
        version = api.objects.version
        api.cut()
        api.put_pod("draft", C)
        await seen.until_addresses(A, B, C)
        assert (api.num_lists, api.watch_versions[1:]) == (1, [version])


async def test_bookmarks_move_the_version_on_so_that_compaction_costs_no_list(
    api: KubernetesApi,
) -> None:
    async with seeing("kubernetes://draft"):
        await until(lambda: api.num_watchers == 1)
        for _ in range(3):
            api.put_pod("target", A)  # nothing that this source would hear of
        api.compact()
        api.send_bookmarks()
        api.end_watches()
        await until(lambda: api.num_watches == 2 and api.num_watchers == 1)
        assert (api.num_lists, api.watch_versions[1]) == (1, api.objects.version)


@pytest.mark.parametrize("gone_as_event", [False, True])
async def test_a_version_that_is_too_old_is_followed_by_a_list(
    api: KubernetesApi, gone_as_event: bool
) -> None:
    api.gone_as_event = gone_as_event
    api.put_pod("draft", A)
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        await until(lambda: api.num_watchers == 1)
        await api.stop()
        api.delete_pod("draft", A)
        api.put_pod("draft", B)
        api.compact()
        await api.start()
        await seen.until_addresses(B)
        await until(lambda: api.num_watchers == 1)
        assert api.num_lists == 2
        assert seen.state.problem == ""


async def test_an_api_server_that_is_away_takes_nothing_back(api: KubernetesApi) -> None:
    api.put_pod("draft", A)
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        await until(lambda: api.num_watchers == 1)
        await api.stop()
        assert "out of reach" in await seen.until_problem("API server")
        heard = seen.state.heard_s_ago
        assert heard is not None
        await until(lambda: (seen.state.heard_s_ago or 0) > heard)
        assert seen.addresses == [A]
        await api.start()
        await until(lambda: seen.state.problem == "")


async def test_errors_of_the_api_server_are_waited_out_with_a_list_at_the_end(
    api: KubernetesApi,
) -> None:
    api.put_pod("draft", A)
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        api.fail(500)
        assert "told to fail" in await seen.until_problem("500")
        api.put_pod("draft", B)
        num_lists = api.num_lists
        await until(lambda: api.num_lists > num_lists + 2)
        assert seen.addresses == [A]
        api.heal()
        await seen.until_addresses(A, B)
        assert seen.state.problem == ""


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_what_may_not_be_done_is_named(api: KubernetesApi, verb: str) -> None:
    api.put_pod("draft", A)
    api.fail(403, verb)
    async with seeing("kubernetes://prod/draft") as seen:
        problem = await seen.until_problem("may not")
        assert f"may not {verb} endpointslices.discovery.k8s.io in the namespace 'prod'" in problem


async def test_credentials_are_read_again_when_they_are_refused(
    api: KubernetesApi, tmp_path: Path
) -> None:
    api.put_pod("draft", A)
    api.token = "another"
    async with seeing("kubernetes://draft") as seen:
        await seen.until_problem("401")
        api.write_kubeconfig(tmp_path / "kubeconfig")
        await seen.until_addresses(A)


async def test_without_credentials_it_says_what_it_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(tmp_path / "nothing")
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", path)
    async with seeing("kubernetes://draft") as seen:
        problem = await seen.until_problem("not in a pod")
        assert "no kubeconfig" in problem


@pytest.mark.parametrize("when", ["at first", "in a watch"])
async def test_a_connection_that_is_silent_is_given_up(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(kubernetes_api, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(kubernetes_api, "WATCH_S", 1)
    monkeypatch.setattr(kubernetes_api, "WATCH_MARGIN_S", 0.2)
    api.put_pod("draft", A)
    if when == "at first":
        api.silence()
    async with seeing("kubernetes://draft") as seen:
        if when == "in a watch":
            await until(lambda: api.num_watchers == 1)
            api.silence()
        await seen.until_problem("in time")
        api.heal()
        api.put_pod("draft", B)
        await seen.until_addresses(A, B)


async def test_a_watch_whose_time_is_up_is_followed_by_the_next(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "WATCH_S", 1)
    monkeypatch.setattr(kubernetes_watch, "RESYNC_S", 0.5)
    async with seeing("kubernetes://draft") as seen:
        await until(lambda: api.num_watchers == 1)
        num_changes = seen.num_changes
        await until(lambda: api.num_watches == 2 and api.num_watchers == 1)
        assert api.num_lists == 2  # since a list was due again
        assert (seen.num_changes, seen.state.problem) == (num_changes, "")


async def test_watches_that_end_at_once_are_not_begun_without_a_pause(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_watch, "FIRST_PAUSE_S", 100.0)
    monkeypatch.setattr(kubernetes_watch, "LONGEST_PAUSE_S", 100.0)
    async with seeing("kubernetes://draft") as seen:
        await until(lambda: api.num_watchers == 1)
        api.end_watches()
        await seen.until_problem("at once")
        assert api.num_watches == 1


async def test_a_port_that_a_slice_lacks_is_named_and_the_other_slices_count(
    api: KubernetesApi,
) -> None:
    ports = [{"name": "http", "port": 80}, {"name": "metrics", "port": 9000}]
    api.put_slice(endpoint_slice("odd", [endpoint("10.0.0.9", uid="x")], ports=ports))
    api.put_pod("draft", A)
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        assert "EndpointSlice odd has the ports [http, metrics]" in seen.state.problem
    async with seeing("kubernetes://draft:metrics") as seen:
        await seen.until_addresses("10.0.0.9:9000")
    async with seeing("kubernetes://draft:7") as seen:
        await seen.until_addresses("10.0.0.1:7", "10.0.0.9:7")
