"""Where and with what a measurement was made."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paceline import __version__
from paceline.cores import num_cores

_PACKAGES = ("torch", "transformers", "grpcio", "numpy")


def describe_machine() -> dict[str, str | int]:
    """This machine; the server may run on another one."""
    return {
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def describe_versions() -> dict[str, str]:
    """Of Paceline, Python and what decides its speed, as installed here."""
    found = {"paceline": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
