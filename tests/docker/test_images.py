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
    pytest.mark.xdist_group("images"),
]

LOCKED = ROOT / "docker" / "locked.txt"
MOST_BYTES = {"coordinator": 450_000_000}
"""With what an image may weigh without its base. That of an engine is PyTorch's affair."""
START_TIMEOUT_S = 1800.0
BODY = {
    "prompt": "Once upon a time, there was a little girl named Lily. Lily",
    "max_tokens": 32,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
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
    assert sorted(path.name for path in layers.find("/opt/paceline")[-1].iterdir()) == [
        "LICENSE",
        "coordinator",
        "healthcheck.py",
        "paceline",
    ]
    assert layers.num_bytes < MOST_BYTES["coordinator"]


@pytest.mark.parametrize("image", ["coordinator", "engine"])
def test_an_image_has_the_pinned_versions_and_no_others(builder: Builder, image: str) -> None:
    pinned = pins("constraints.txt") | pins("docker/locked.txt")
    layers = builder.build(image)
    sys.stdout.write(f"{image}: {layers.num_bytes / 1e6:.0f} MB above its base\n")
    found = versions(layers)
    # A build of torch has a name of its own behind a plus, and brings NVIDIA's libraries itself.
    found = {name: version.partition("+")[0] for name, version in found.items()}
    libraries = {name for name in found if name.startswith("nvidia-") or name == "triton"}
    assert {name: found[name] for name in set(found) - libraries} == {
        name: pinned.get(name, "not pinned") for name in set(found) - libraries
    }


def test_an_image_for_cuda_is_refused_without_a_torch_for_cuda(builder: Builder) -> None:
    local = versions(builder.build("engine"))["torch"].partition("+")[2]
    if local != "cpu":
        builder.build("engine-cuda")
        return
    with pytest.raises(LineFailed, match=r"cannot use CUDA: give --build-arg TORCH_INDEX_URL"):
        builder.build("engine-cuda")


def test_the_services_of_compose_answer_as_nobody_from_files_that_cannot_be_written(
    builder: Builder, tmp_path: Path
) -> None:
    if not shutil.which("redis-server") or not shutil.which("redis-cli"):
        pytest.skip("there is no redis-server here, which stands in for the image of Redis")
    with Machine(tmp_path, builder, read_stages()) as machine:
        for name in ("redis", "target", "draft", "coordinator"):
            machine.start(name)
        took = machine.wait_healthy(["redis", "target", "draft", "coordinator"], START_TIMEOUT_S)
        sys.stdout.write(f"healthy after {took}\n")

        for name in ("redis", "target", "draft", "coordinator"):
            assert machine.run(name, ["id", "-u"]).stdout == "65532\n"
            for path in ("/opt/x", "/usr/x", "/etc/x"):
                assert "Read-only file system" in machine.run(name, ["touch", path]).stderr
            assert machine.run(name, ["touch", "/tmp/x"]).returncode == 0

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
        for name in ("coordinator", "draft", "target"):
            assert machine.stop(name) == 0


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
