"""What docs/kubernetes.md shows is what the chart renders."""

import re
from importlib.util import find_spec

from tests.chart.rendering import CHART, needs_helm, render

pytestmark = needs_helm

PAGE = CHART.parent / "docs" / "kubernetes.md"


def documented_objects() -> set[tuple[str, str]]:
    _, _, rest = PAGE.read_text().partition("<!-- objects:")
    table, _, _ = rest.partition("<!-- end of objects -->")
    rows = re.findall(r"^\| (\w+) \| (`.+`) \|$", table, re.MULTILINE)
    return {(kind, name) for kind, names in rows for name in re.findall(r"`([^`]+)`", names)}


def test_a_target_of_four_ranks_and_two_pools_are_the_objects_that_are_documented() -> None:
    rendered = render(files=[CHART / "ci" / "ranks-values.yaml"])
    objects = {(item["kind"], item["metadata"]["name"]) for item in rendered}
    assert documented_objects() == objects


def test_a_leader_worker_set_takes_the_place_that_is_documented() -> None:
    api = "leaderworkerset.x-k8s.io/v1"
    rendered = render(files=[CHART / "ci" / "ranks-values.yaml"], api_versions=[api])
    objects = {(item["kind"], item["metadata"]["name"]) for item in rendered}
    replaced = {("StatefulSet", "paceline-target-0"), ("Service", "paceline-target-ranks")}
    there = ("LeaderWorkerSet", "paceline-target-ranks")
    assert objects == documented_objects() - replaced | {there}


def test_what_is_run_in_a_pod_is_a_module_that_its_image_has() -> None:
    commands = re.findall(r"kubectl exec \S+ -- (\S+ \S+ \S+)", PAGE.read_text())
    assert commands
    for command in commands:
        assert command.startswith("python -m paceline."), f"no image has {command!r}"
        assert find_spec(command.split()[2])
