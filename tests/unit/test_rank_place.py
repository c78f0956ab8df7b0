"""A rank finds its place by torchrun's variables, or says what is wrong with them."""

import pytest

from paceline.cli.config import ServeSettings
from paceline.config import Settings, read_settings
from paceline.engine.ranks.place import RankPlace, find_place
from paceline.errors import InvalidConfig
from target_service.config import TargetSettings

THERE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0.ranks", "MASTER_PORT": "29500"}


def test_a_rank_finds_its_place_by_the_variables() -> None:
    assert find_place(2, THERE) == RankPlace(1, 2, "pod-0.ranks", 29500, local_size=1)


def test_a_process_that_is_alone_does_not_look_at_variables_of_other_software() -> None:
    assert find_place(1, {"RANK": "7", "WORLD_SIZE": "many"}) is None


@pytest.mark.parametrize(
    "changed, is_first",
    [
        ({}, True),
        ({"LOCAL_WORLD_SIZE": "2"}, False),
        ({"MASTER_ADDR": "127.0.0.1"}, False),
        ({"MASTER_ADDR": "localhost", "RANK": "0"}, True),
        ({"MASTER_ADDR": "::1", "LOCAL_WORLD_SIZE": "1"}, True),
        ({"WORLD_SIZE": "4", "RANK": "2", "LOCAL_WORLD_SIZE": "2"}, True),
        ({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_WORLD_SIZE": "2"}, False),
    ],
)
def test_one_rank_of_a_host_has_the_ports_of_the_settings(
    changed: dict[str, str], is_first: bool
) -> None:
    variables = THERE | changed
    place = find_place(int(variables["WORLD_SIZE"]), variables)
    assert place is not None and place.is_first_of_host == is_first


def test_a_process_without_the_variables_is_told_of_both_ways_to_start_ranks() -> None:
    with pytest.raises(InvalidConfig) as refused:
        find_place(3, {"RANK": "0", "MASTER_ADDR": ""})
    assert "is 3, and WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set" in refused.value.message
    assert "torchrun --nproc-per-node 3 -m target_service" in refused.value.message
    assert "WORLD_SIZE=3, RANK=0 to 2" in refused.value.message


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({"WORLD_SIZE": "3"}, r"WORLD_SIZE is 3, but --tensor-parallel-size .* is 2;"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; expected an integer, 1 or more"),
        ({"RANK": "2"}, "RANK is '2'; expected an integer, 0 to 1"),
        ({"RANK": "-1"}, "RANK is '-1'; expected an integer, 0 to 1"),
        ({"RANK": "one"}, "RANK is 'one'; expected an integer"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is '0'; expected an integer, 1 to 65535"),
        ({"MASTER_PORT": "tcp://10.0.0.1:29500"}, "MASTER_PORT is 'tcp://10.0.0.1:29500'"),
        ({"MASTER_ADDR": "[::1]"}, r"MASTER_ADDR is '\[::1\]'; expected an address without"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE is '3'; expected an integer, 1 to 2"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(changed: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidConfig, match=expected):
        find_place(2, THERE | changed)


@pytest.mark.parametrize("cls", [TargetSettings, ServeSettings])
def test_the_table_model_is_not_shared(cls: type[Settings]) -> None:
    with pytest.raises(InvalidConfig, match="--tensor-parallel-size .*model '?table:7'?"):
        read_settings(cls, {"model": "table:7", "tensor_parallel_size": "2"})
