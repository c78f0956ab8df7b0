"""What a Kubernetes source makes of answers that are none of an API server that works."""

import pytest
from kubernetes_api import KubernetesApi
from session_stores import until
from test_kubernetes_sources import A, seeing


@pytest.mark.parametrize("said", [{"kind": "Status", "status": "Failure"}, {"items": []}])
async def test_what_is_no_list_takes_nothing_back(
    api: KubernetesApi, said: dict[str, object]
) -> None:
    api.put_pod("draft", A)
    async with seeing("kubernetes://draft") as seen:
        await seen.until_addresses(A)
        api.said = said
        api.fail(410, "watch")
        await seen.until_problem("no EndpointSliceList")
        assert seen.addresses == [A]
        api.heal()
        await until(lambda: seen.state.problem == "")


@pytest.mark.parametrize("event", [{"type": "MODIFIED", "object": "?"}, {"kind": "Status"}])
async def test_what_is_no_event_is_not_waited_behind(
    api: KubernetesApi, event: dict[str, object]
) -> None:
    async with seeing("kubernetes://draft") as seen:
        await until(lambda: api.num_watchers == 1)
        api.say(event)
        await seen.until_problem("no event of a watch")
        await until(lambda: seen.state.problem == "")


async def test_what_is_too_long_for_a_watch_is_listed(api: KubernetesApi) -> None:
    async with seeing("kubernetes://draft") as seen:
        await until(lambda: api.num_watchers == 1)
        api.put_pod("draft", A, labels={"long": "x" * (5 << 20)})
        await seen.until_addresses(A)
