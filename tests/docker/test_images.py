"""Every line of docker/Dockerfile is run, and what came of it serves as docker/compose.yaml says.

No container engine takes part: `image_root.py` says what stands in for it. Run as a script, this
writes docker/locked.txt anew, from what pip chooses without it.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_layers import Builder, Layers, LineFailed
from image_root import temporary_folder, why_not_here
from image_stages import ROOT, pins, read_stages
from machine import Machine

MISSING = why_not_here()
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]

LOCKED = ROOT / "docker" / "locked.txt"
MOST_BYTES = 450_000_000
"""With what a coordinator may weigh above its base. What an engine weighs is PyTorch's affair."""
START_TIMEOUT_S = 1800.0
BODY = {
    "prompt": "Once upon a time, there was a little girl named Lily. Lily",
    "max_tokens": 32,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}


@pytest.fixture
def builder() -> Iterator[Builder]:
    with temporary_folder() as folder:
        yield Builder(Path(folder), read_stages())


def versions(layers: Layers) -> dict[str, str]:
    """What the environment of an image has, by name."""
    (site,) = layers.find("/opt/venv/lib")[-1].glob("python3*/site-packages")
    found = {}
    for metadata in site.glob("*.dist-info/METADATA"):
        head = metadata.read_text().partition("\n\n")[0]
        name, version = (re.search(rf"^{key}: (.+)$", head, re.M) for key in ("Name", "Version"))
        assert name and version, metadata
        found[re.sub(r"[-_.]+", "-", name[1]).lower()] = version[1]
    return found


def test_the_coordinator_has_neither_models_nor_what_runs_them(builder: Builder) -> None:
    layers = builder.build("coordinator")
    found = versions(layers)
    assert not {"torch", "transformers", "safetensors", "pip", "setuptools"} & set(found)
    check_pinned(found)
    assert sorted(path.name for path in layers.find("/opt/paceline")[-1].iterdir()) == [
        "LICENSE",
        "coordinator",
        "healthcheck.py",
        "paceline",
    ]
    assert layers.num_bytes < MOST_BYTES


def test_the_services_of_compose_answer_as_nobody_from_files_that_cannot_be_written(
    builder: Builder, tmp_path: Path
) -> None:
    if not shutil.which("redis-server") or not shutil.which("redis-cli"):
        pytest.skip("there is no redis-server here, which stands in for the image of Redis")
    for image in ("coordinator", "engine"):
        sys.stdout.write(f"{image}: {builder.build(image).num_bytes / 1e6:.0f} MB above its base\n")
    check_pinned(versions(builder.build("engine")))
    check_image_for_cuda(builder)
    names = ["redis", "target", "draft", "coordinator"]
    with Machine(tmp_path, builder, read_stages()) as machine:
        for name in names:
            machine.start(name)
        sys.stdout.write(f"healthy after {machine.wait_healthy(names, START_TIMEOUT_S)}\n")
        for name in names:
            check_can_do_nothing_else(machine, name)
        check_answers(machine)
        for name in ("coordinator", "draft", "target"):
            assert machine.stop(name) == 0


def check_pinned(found: dict[str, str]) -> None:
    """It has the pinned versions and nothing that is not pinned."""
    pinned = pins("constraints.txt") | pins("docker/locked.txt")
    for name, version in found.items():
        # A build of torch has a name of its own behind a plus, and brings NVIDIA's libraries.
        if not name.startswith(("nvidia-", "cuda-")) and name != "triton":
            assert version.partition("+")[0] == pinned.get(name, "not pinned"), name


def check_image_for_cuda(builder: Builder) -> None:
    """It is made with a PyTorch for CUDA, and refused with another."""
    if not versions(builder.build("engine"))["torch"].endswith("+cpu"):
        builder.build("engine-cuda")
        return
    with pytest.raises(LineFailed, match=r"cannot use CUDA: give --build-arg TORCH_INDEX_URL"):
        builder.build("engine-cuda")


def check_can_do_nothing_else(machine: Machine, name: str) -> None:
    """It is nobody, and of the files it can write those in /tmp."""
    assert machine.run(name, ["id", "-u"]).stdout == "65532\n"
    for path in ("/opt/x", "/usr/x", "/etc/x"):
        assert "Read-only file system" in machine.run(name, ["touch", path]).stderr
    assert machine.run(name, ["touch", "/tmp/x"]).returncode == 0


def check_answers(machine: Machine) -> None:
    """All are used, and drafts change nothing but the speed."""
    status = machine.ask("http://coordinator:8000/status")
    assert all(worker["ready"] for worker in status["workers"]), status
    assert status["session_store"] == "redis", status
    fast, plain = (
        machine.ask("http://coordinator:8000/v1/completions", BODY | {"speculation": how})
        for how in ({"method": "auto"}, {"method": "off"})
    )
    assert fast["choices"] == plain["choices"]
    speculation = fast["metrics"]["speculative_decoding"]
    assert speculation["num_accepted_draft_tokens"] > 0, speculation


def _write_locked() -> None:
    LOCKED.write_text("")
    with temporary_folder() as folder:
        builder = Builder(Path(folder), read_stages())
        found = {}
        for image in ("coordinator", "engine"):
            found |= versions(builder.build(image))
    own = pins("constraints.txt")
    lines = [f"{name}=={version}" for name, version in sorted(found.items()) if name not in own]
    LOCKED.write_text(
        "# What the packages of constraints.txt need themselves, in the images. Written by\n"
        "# tests/docker/test_images.py.\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    _write_locked()
