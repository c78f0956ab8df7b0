"""Which numerics are the newer ones: version first, then the longest-running target's start."""

from dataclasses import replace

from coordinator.rollout import ages
from paceline.rounds import WorkerInfo

OLD = WorkerInfo("a", "1.2.0", numerics="old", started_at_ms=1000)
NEW = WorkerInfo("b", "1.2.0", numerics="new", started_at_ms=2000)


def newest(*infos: WorkerInfo) -> str:
    found = ages(infos)
    assert ages(reversed(infos)) == found
    return max(found, key=lambda numerics: found[numerics])


def test_of_equal_versions_the_later_start_is_newer() -> None:
    assert newest(OLD, NEW) == "new"


def test_a_higher_version_is_newer_whenever_it_started() -> None:
    for version in ("1.10", "1.2.1", "2"):
        assert newest(replace(OLD, version=version), NEW) == "old"
    for version in ("1.2", "1.2.0rc1", "1.1.9"):
        assert newest(replace(OLD, version=version), NEW) == "new"


def test_a_target_that_is_restarted_makes_nothing_newer() -> None:
    restarted = replace(OLD, instance_id="c", started_at_ms=3000)
    assert newest(OLD, restarted, NEW) == "new"


def test_one_that_does_not_say_when_it_started_is_old() -> None:
    assert newest(replace(NEW, started_at_ms=0), OLD) == "old"
    assert newest(replace(OLD, version=""), replace(NEW, started_at_ms=1)) == "new"
