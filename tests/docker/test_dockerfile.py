"""docker/Dockerfile: what an image must be before anybody builds it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from build_context import context_files, files_below
from image_stages import DOCKERFILE, IMAGES, ROOT, flags, pins, read_stages, steps_of

from coordinator.config import CoordinatorSettings
from draft_service.config import DraftSettings
from paceline import __version__
from paceline.config import describe_settings
from target_service.config import TargetSettings

STAGES = read_stages()
SETTINGS = {
    "coordinator": [CoordinatorSettings],
    "engine": [TargetSettings, DraftSettings],
    "engine-cuda": [TargetSettings, DraftSettings],
}
"""What the commands of an image are set by."""
SECRET = re.compile(r"key|token|password|secret|credential", re.IGNORECASE)
PINNED = re.compile(r"[a-z.]+:[0-9][\w.-]+(@sha256:[0-9a-f]{64})?")


def test_hadolint_finds_nothing() -> None:
    tool = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([tool, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_there_is_a_target_for_each_image() -> None:
    assert set(IMAGES) <= set(STAGES)


def test_base_images_are_pinned() -> None:
    assert [stage.name for stage in STAGES.values() if not PINNED.fullmatch(stage.base)] == []


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_a_user_that_kubernetes_can_check(image: str) -> None:
    uid, _, gid = STAGES[image].config.user.partition(":")
    assert int(uid) > 0 and int(gid) > 0


@pytest.mark.parametrize("image", IMAGES)
def test_labels_say_what_an_image_is(image: str) -> None:
    labels = {
        name.removeprefix("org.opencontainers.image."): text
        for name, text in STAGES[image].config.labels.items()
    }
    assert labels["title"] == f"paceline-{image}"
    assert labels["version"] == __version__
    assert (
        labels["licenses"]
        == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    )
    assert labels["base.name"] == STAGES[image].base
    assert {"description", "revision", "vendor"} <= set(labels)


@pytest.mark.parametrize("image", IMAGES)
def test_settings_of_an_image_are_those_of_all_that_it_runs(image: str) -> None:
    """A service refuses what it does not know."""
    names = {name for name in STAGES[image].config.environment if name.startswith("PACELINE_")}
    for settings in SETTINGS[image]:
        assert names <= {doc.key for doc in describe_settings(settings)}


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_modules_that_it_has(image: str) -> None:
    config = STAGES[image].config
    assert config.entrypoint == ("python", "-m")
    assert (ROOT / config.command[0] / "__main__.py").is_file()


def test_no_secret_is_an_argument_or_a_variable() -> None:
    names = {
        name
        for stage in STAGES.values()
        for name in (*stage.config.arguments, *stage.config.environment)
    }
    assert [name for name in names if SECRET.search(name)] == []


def test_no_line_fetches_what_pip_does_not_pin() -> None:
    for stage, step in steps_of(STAGES.values(), "RUN"):
        line = step.value[0]
        assert not re.search(r"curl|wget|apt|git |https?:|\|", line), (stage.name, line)
        for installed in line.split("pip --python ")[1:]:
            assert "--constraint constraints.txt" in installed, line
            assert "--no-deps" in installed or "--constraint locked.txt" in installed, line
    assert steps_of(STAGES.values(), "ADD") == []


def test_what_is_copied_is_there_and_not_kept_back() -> None:
    for stage, step in steps_of(STAGES.values(), "COPY"):
        *sources, _ = step.value
        if other := flags(step).get("from"):
            assert other in STAGES, step.original
        else:
            assert [path for path in sources if not files_below(path)] == [], stage.name


def test_a_builder_is_sent_what_is_copied_and_nothing_else() -> None:
    named = {
        source
        for _, step in steps_of(STAGES.values(), "COPY")
        if "from" not in flags(step)
        for source in step.value[:-1]
    }
    copied = {path for source in named for path in files_below(source)}
    assert context_files() == copied
    assert [path for path in copied if "__pycache__" in path or path.endswith(".pyc")] == []


def test_locked_versions_are_beside_those_of_the_project_and_not_other_ones() -> None:
    assert set(pins("docker/locked.txt")) & set(pins("constraints.txt")) == set()
