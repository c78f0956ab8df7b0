"""Devices that do what CUDA ones do, and compute on the CPU."""

import torch

from paceline.engine.device import CpuDevice, CudaDevice, equal_sums


class CudaDouble(CudaDevice):
    """All that a worker does for CUDA, where there is no card: what it says is CUDA's."""

    def __init__(self, free_bytes: int = 2**20) -> None:
        self._free_bytes = free_bytes
        super().__init__(torch.device("cpu"))

    def _set_up(self) -> None:
        equal_sums()

    @property
    def facts(self) -> tuple[str, ...]:
        return "a double", "0.0"

    def free_memory(self) -> int:
        return self._free_bytes

    def synchronize(self) -> None:
        pass


class ChoosingCpu(CpuDevice):
    """The CPU, with its bits, where tokens are chosen as they are on a card."""

    chooses_tokens = True
