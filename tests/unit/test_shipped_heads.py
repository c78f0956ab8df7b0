"""Which drafter the service uses when nobody names one."""

from pathlib import Path

import pytest

from draft_service.config import DraftSettings
from paceline.cli.config import ServeSettings
from paceline.heads.shipped import AUTO, HEADS, shipped_head
from target_service.config import TargetSettings


def a_head(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    return directory


@pytest.mark.parametrize("model", HEADS)
def test_a_shipped_head_is_found_by_the_name_of_its_model(model: str, tmp_path: Path) -> None:
    assert shipped_head(model, tmp_path) is None
    head = a_head(tmp_path / HEADS[model])
    assert shipped_head(model, tmp_path) == head


@pytest.mark.parametrize("model", ["table:7", "SmolLM2-135M-Instruct", "/models/other"])
def test_other_models_have_none(model: str, tmp_path: Path) -> None:
    for folder in set(HEADS.values()):
        a_head(tmp_path / folder)
    assert shipped_head(model, tmp_path) is None


def test_without_a_head_the_default_copies() -> None:
    settings = ServeSettings(model="table:7")
    assert (settings.method, settings.head_directory, settings.feeds_head) == ("suffix", "", False)


def test_with_a_head_the_default_is_hybrid() -> None:
    settings = ServeSettings(model="table:7", head="h")
    assert (settings.method, settings.head_directory, settings.feeds_head) == ("hybrid", "h", True)
    assert settings.contradictions() == []


def test_the_bundled_model_drafts_with_what_came_with_this_version() -> None:
    settings, head = ServeSettings(), shipped_head("")
    assert settings.method == ("hybrid" if head else "suffix")
    assert settings.head_directory == str(head or "")


@pytest.mark.parametrize("drafter", ["eagle", "medusa", "hybrid"])
def test_a_drafter_that_runs_a_head_wants_one(drafter: str) -> None:
    with pytest.raises(ValueError, match=f"--head is required: --drafter is {drafter}"):
        ServeSettings(model="table:7", drafter=drafter)  # type: ignore[arg-type]


def test_a_drafter_that_is_named_is_used() -> None:
    assert ServeSettings(drafter="suffix").method == "suffix"
    assert not ServeSettings(drafter="off", head="h").feeds_head


@pytest.mark.parametrize("model", HEADS)
def test_services_take_the_shipped_head(model: str) -> None:
    head = str(shipped_head(model))
    assert TargetSettings(model=model, head=AUTO).head == head
    for settings in ({"drafter": "hybrid", "head": AUTO}, {"drafter": AUTO}):
        draft = DraftSettings.model_validate({"model": model, **settings})
        assert (draft.drafter, draft.head) == ("hybrid", head)


def test_services_of_another_model_copy() -> None:
    assert TargetSettings(model="table:7", head=AUTO).head == ""
    draft = DraftSettings(drafter=AUTO, model="table:7")
    assert (draft.drafter, draft.model, draft.head) == ("suffix", "", "")
    with pytest.raises(ValueError, match=r"--head .* is required by the drafter hybrid"):
        DraftSettings(drafter="hybrid", model="table:7", head=AUTO)


def test_services_take_the_head_that_is_given() -> None:
    assert TargetSettings(head="h").head == "h"
    draft = DraftSettings(drafter=AUTO, model="m", head="h")
    assert (draft.drafter, draft.model, draft.head) == ("hybrid", "m", "h")
