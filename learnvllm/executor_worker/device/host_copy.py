"""A tensor on its way from the device to the host: the copy is queued now, waited for when it is wanted.

Upstream: the copy event of AsyncOutput in vllm/v1/worker/gpu/async_utils.py.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """Queues the copy behind what computes `source`, which may be overwritten by what is queued after it."""

    def __init__(self, source: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if source.is_cuda:
            self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._host.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = source.clone()

    def is_ready(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> np.ndarray:
        if self._event is not None:
            self._event.synchronize()
        values: np.ndarray = self._host.numpy()
        return values
