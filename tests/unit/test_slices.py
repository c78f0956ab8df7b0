"""EndpointSlices to endpoints: pods count once, whatever the slices and their order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_objects import endpoint, endpoint_slice

from paceline.workers.discovery.endpoint import Endpoint
from paceline.workers.discovery.slices import NOT_READY, TERMINATING, endpoints_of

CONDITIONS = st.sampled_from([None, True, False])
HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"])
UIDS = st.sampled_from([None, "a", "b", "c"])
PODS = st.builds(
    endpoint, HOSTS, uid=UIDS, ready=CONDITIONS, serving=CONDITIONS, terminating=CONDITIONS
)
SLICES = st.lists(st.builds(endpoint_slice, st.just("slice"), st.lists(PODS, max_size=4)))


def seen(*slices: dict[str, Any], port: str = "") -> list[Endpoint]:
    found = endpoints_of(slices, port)
    assert found.problem == ""
    return list(found.endpoints)


@pytest.mark.parametrize(
    ("conditions", "closed"),
    [
        ({"ready": None}, ""),
        ({"ready": True, "serving": True, "terminating": False}, ""),
        ({"ready": False, "serving": True, "terminating": True}, TERMINATING),
        ({"ready": False, "serving": False, "terminating": True}, TERMINATING),
        ({"ready": False, "serving": False, "terminating": False}, NOT_READY),
        ({"ready": False}, NOT_READY),
        # A Service that publishes addresses that are not ready says ready to the end.
        ({"ready": True, "serving": True, "terminating": True}, TERMINATING),
    ],
)
def test_only_what_is_ready_and_not_terminating_is_open(
    conditions: dict[str, Any], closed: str
) -> None:
    pod = endpoint("10.0.0.1", uid="a", **conditions)
    assert seen(endpoint_slice("s", [pod])) == [Endpoint("10.0.0.1:50051", "a", closed)]


def test_unset_fields_are_read_as_the_api_says() -> None:
    bare = {"addresses": ["10.0.0.1"], "conditions": None}
    found = endpoint_slice("s", [bare])
    found["ports"] = [{"port": 7}]
    assert seen(found) == [Endpoint("10.0.0.1:7")]
    assert seen({**found, "endpoints": None}) == []
    assert seen({**found, "endpoints": [{"addresses": []}]}) == []


def test_an_address_is_the_open_pods_where_an_old_slice_still_lists_the_last_one() -> None:
    old = endpoint("10.0.0.1", uid="a", ready=False, terminating=True)
    new = endpoint("10.0.0.1", uid="b")
    for pods in ([old, new], [new, old]):
        assert seen(endpoint_slice("s", pods)) == [Endpoint("10.0.0.1:50051", "b")]


def test_udp_ports_are_no_ports() -> None:
    ports = [{"name": "grpc", "port": 1, "protocol": "UDP"}, {"name": "rpc", "port": 2}]
    pods = [endpoint("10.0.0.1")]
    assert seen(endpoint_slice("s", pods, ports=ports)) == [Endpoint("10.0.0.1:2")]


@given(SLICES)
def test_pods_and_addresses_count_once_in_any_order_of_slices(slices: list[Any]) -> None:
    endpoints = seen(*slices)
    addresses = [e.address for e in endpoints]
    uids = [e.uid for e in endpoints if e.uid]
    assert addresses == sorted(set(addresses))
    assert len(uids) == len(set(uids))
    assert seen(*reversed(slices)) == endpoints
    assert seen(*slices, *slices) == endpoints


@given(SLICES)
def test_all_pods_are_there_and_none_is_open_against_its_slices(slices: list[Any]) -> None:
    endpoints = seen(*slices)
    listed = [e for found in slices for e in found["endpoints"]]
    hosts = {e["addresses"][0] for e in listed}
    assert {_host(e) for e in endpoints} <= hosts
    for one in listed:
        uid = (one.get("targetRef") or {}).get("uid", "")
        own = [e for e in listed if uid and (e.get("targetRef") or {}).get("uid") == uid] or [one]
        places = {e["addresses"][0] for e in own}  # another pod may have taken one of them
        assert any((uid and e.uid == uid) or _host(e) in places for e in endpoints)
    leaving = {
        e["targetRef"]["uid"]
        for e in listed
        if "targetRef" in e and e["conditions"].get("terminating")
    }
    assert all(e.closed for e in endpoints if e.uid in leaving)


@given(SLICES, SLICES)
def test_a_pod_stays_at_its_address_while_that_is_listed(
    before: list[Any], added: list[Any]
) -> None:
    known = endpoints_of(before, "").endpoints
    after = endpoints_of([*before, *added], "", known).endpoints
    address_of = {e.uid: e.address for e in after if e.uid}
    for one in known:
        if one.uid in address_of:
            assert address_of[one.uid] == one.address


def _host(endpoint: Endpoint) -> str:
    return endpoint.address.rpartition(":")[0].strip("[]")
