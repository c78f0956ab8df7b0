"""What `paceline serve` tells its workers of the machine that they share."""

from paceline.cli.config import ServeSettings
from paceline.cli.worker_settings import draft_values, target_values
from paceline.engine.device import CPU
from target_service.config import TargetSettings


def test_workers_run_where_they_are_told_and_leave_memory_for_one_another() -> None:
    settings = ServeSettings(device="cuda:1", drafter="draft-model", draft_model="d")
    for values in (target_values(settings), draft_values(settings)):
        assert values["device"] == "cuda:1"
        assert values["kv_memory_fraction"] == CPU.kv_memory_fraction
    given = {name: value for name, value in target_values(settings).items() if value is not None}
    assert TargetSettings(**given).device == "cuda:1"
