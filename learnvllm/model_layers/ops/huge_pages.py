"""Memory for weights in pages of 2 MiB, where Linux has them to give.

A decode step reads all weights once, in order. With pages of 4 KiB the CPU's prefetcher stops at the end of
each and every page's address is looked up anew; large pages make the same kernel 5 to 15 % faster
(https://docs.kernel.org/admin-guide/mm/transhuge.html). Upstream leaves this to the allocator that it
preloads, tcmalloc (vllm/platforms/cpu.py, CpuPlatform.check_and_update_config).
"""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
# Layers share mappings, for a page of each layer's own would waste half of it. Untouched, it costs nothing.
CHUNK = 32 * HUGE_PAGE


class HugePages:
    """Gives out memory piece by piece; a mapping goes when the last tensor in it has gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: mmap.mmap | None = None
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As torch.empty, which is also where small tensors, and all on other systems, come from."""
        size = torch.Size(shape).numel() * dtype.itemsize
        if size < HUGE_PAGE // 8 or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            if self._chunk is None or self._used + size > len(self._chunk):
                self._chunk = mmap.mmap(
                    -1, max(CHUNK, -(-size // HUGE_PAGE) * HUGE_PAGE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                )
                self._used = 0
                with suppress(OSError):  # from a kernel built without them
                    self._chunk.madvise(mmap.MADV_HUGEPAGE)
            chunk, start = self._chunk, self._used
            self._used += -(-size // 64) * 64  # whole cache lines
        return torch.frombuffer(chunk, dtype=dtype, count=size // dtype.itemsize, offset=start).view(shape)


_pages = HugePages()
empty = _pages.empty
