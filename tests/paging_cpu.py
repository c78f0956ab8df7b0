"""A CPU that keeps KV as a card does."""

from paceline.engine.device import CpuDevice


class PagingCpu(CpuDevice):
    """Blocks of one pool, and passes at fixed widths, where the contiguous bits are at hand."""

    pages_kv = True


PAGING_CPU = PagingCpu()
