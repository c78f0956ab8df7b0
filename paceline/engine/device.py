"""What differs by where a model runs: types of weights, memory, rows of linear layers, the bits.

A worker makes one `Device` and hands it to all that compute with it.
Knows nothing about models. `CudaDevice` has never run on a card: what was run of it was run with a
double of the tests that does as it says and computes on the CPU.

Invariant: who holds a device has torch set up as that device needs for equal bits.
"""

import os
from pathlib import Path
from typing import Protocol

import torch

from paceline.errors import InvalidConfig

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Device(Protocol):
    """Where one worker computes."""

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors are."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types of weights that it runs, its default first."""

    @property
    def kv_memory_fraction(self) -> float:
        """Share of the free memory that the KV may fill where no setting says another."""

    @property
    def linear_rows(self) -> int:
        """The one number of rows at which `F.linear` runs."""

    @property
    def packs_weights(self) -> bool:
        """Whether linear layers may use kernels with a layout of their own."""

    @property
    def pages_kv(self) -> bool:
        """Whether the KV of all sequences lies in blocks of one pool, or each by itself."""

    @property
    def refuses_varying_width(self) -> bool:
        """Whether a model whose rows depend on the width of a pass is refused, or said to be so."""

    @property
    def chooses_tokens(self) -> bool:
        """Whether tokens are chosen there, so that rows of logits stay where they are."""

    @property
    def facts(self) -> tuple[str, ...]:
        """What of the machine decides the bits of a row."""

    def free_memory(self) -> int:
        """Bytes that this process may still take for tensors there."""

    def synchronize(self) -> None:
        """Return when all that was asked of it is computed."""


class CpuDevice:
    """The cores of this machine: several workers may share them."""

    torch_device = torch.device("cpu")
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    kv_memory_fraction = 0.25
    linear_rows = 16
    packs_weights = True
    pages_kv = False
    refuses_varying_width = True
    chooses_tokens = False

    @property
    def facts(self) -> tuple[str, ...]:
        """Its vector units, and how many threads share a sum."""
        return torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads())

    def free_memory(self) -> int:
        """What the host has left, or the control group if that is less."""
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        group = Path("/sys/fs/cgroup")
        try:
            limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
            return min(free, int(limit) - int(used))
        except (OSError, ValueError):  # no control group, or no limit ("max")
            return free

    def synchronize(self) -> None:
        """Whatever returned is computed."""


_TYPES_OF_CARDS = ("bfloat16", "float16", "float32")


class CudaDevice:
    """One CUDA card, on its default stream.

    cuBLAS chooses how to sum by the shape of a call, its workspace and whether it may cut the
    inputs in parts (split-K). So all linear layers have one number of rows, the workspaces are of
    one size (`CUBLAS_ENVIRONMENT`), and split-K, TF32 and sums of less than 32 bits are off.
    Whether rows then have equal bits is measured when a model is loaded, and said where they do
    not.
    """

    dtypes: tuple[str, ...] = _TYPES_OF_CARDS
    kv_memory_fraction = 0.9
    linear_rows = 128
    packs_weights = False
    pages_kv = True
    refuses_varying_width = False
    chooses_tokens = True

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._set_up()

    def _set_up(self) -> None:
        torch.cuda.set_device(self.torch_device)
        self.dtypes = dtypes_of_card(torch.cuda.get_device_capability(self.torch_device))
        torch.backends.cuda.preferred_blas_library("cublaslt")
        equal_sums()

    @property
    def facts(self) -> tuple[str, ...]:
        """Its kind, and the CUDA whose libraries compute."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        return (
            properties.name,
            f"{properties.major}.{properties.minor}",
            str(properties.multi_processor_count),
            str(torch.version.cuda),
        )

    def free_memory(self) -> int:
        """What is unused, less what passes work in, and at least half of it."""
        unused = unused_memory(self.torch_device)
        return unused - min(WORKING_MEMORY, unused // 2)

    def synchronize(self) -> None:
        """Return when the stream is empty."""
        torch.cuda.synchronize(self.torch_device)


CPU = CpuDevice()
WORKING_MEMORY = 2**31
"""Bytes of a card for kernels' code, activations, rows of logits and what tokens are chosen in:
some 1 GB for passes of 600 rows of an 8B model with a vocabulary of 128,000 tokens."""
CUBLAS_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
"""Set before CUDA starts. Workspaces too small for the partial sums of split-K, of one size
whatever memory is free."""


def dtypes_of_card(capability: tuple[int, int]) -> tuple[str, ...]:
    """Those that cards of a compute capability multiply; bfloat16 came with 8.0."""
    return _TYPES_OF_CARDS if capability >= (8, 0) else _TYPES_OF_CARDS[1:]


def unused_memory(device: torch.device) -> int:
    """Bytes that a card has left, and that torch keeps of it without a use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def equal_sums() -> None:
    """Turn off what lets cuBLAS sum a row in another order or with fewer bits."""
    matmul = torch.backends.cuda.matmul
    matmul.fp32_precision = "ieee"
    matmul.allow_fp16_accumulation = False
    # The second: whether inputs may be cut in parts.
    matmul.allow_bf16_reduced_precision_reduction = (False, False)
    matmul.allow_fp16_reduced_precision_reduction = (False, False)


def open_device(name: str, local_rank: int = 0) -> Device:
    """The device of a setting: `auto`, `cpu`, `cuda` or `cuda:<index>`.

    Of the ranks of a host each takes the card of its number, unless it sees one card only. Raises
    `InvalidConfig` when it is not there. The environment has `CUBLAS_ENVIRONMENT`.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.device_count() > 1:
        name = f"cuda:{local_rank}"
    device = find_torch_device(name)
    return CPU if device.type == "cpu" else CudaDevice(device)


def find_torch_device(name: str) -> torch.device:
    """A device by its name; raises `InvalidConfig` when it is not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InvalidConfig(f"device {name!r}: expected cpu, cuda or cuda:<index>")
    if device.type == "cpu":
        return torch.device("cpu")
    index, count = device.index or 0, torch.cuda.device_count()
    if index >= count:
        seen = "no card" if count == 0 else f"{count}, cuda:0 to cuda:{count - 1}"
        built = "" if torch.version.cuda else ", and is a build without CUDA"
        raise InvalidConfig(f"device {name!r}: torch {torch.__version__} sees {seen}{built}")
    return torch.device("cuda", index)


def dtype_on(device: Device, name: str) -> str:
    """The type of weights that a setting names, `auto` for the device's own.

    Raises `InvalidConfig` for one in which rows have not the same bits there.
    """
    if name == "auto":
        return device.dtypes[0]
    if name not in device.dtypes:
        raise InvalidConfig(
            f"dtype {name!r}: expected one of {', '.join(device.dtypes)} on the device "
            f"{device.torch_device.type}"
        )
    return name
