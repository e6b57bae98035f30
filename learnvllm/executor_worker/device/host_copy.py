"""Memory of the host that the device reads and writes by itself (pinned), so that copies wait for nobody.

Upstream: the copy event of AsyncOutput in vllm/v1/worker/gpu/async_utils.py.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """Queues the copy behind what computes `source`, which may be overwritten by what is queued after it.

    stream: the device's current one (asking torch for it takes longer than queueing the copy).
    """

    def __init__(self, source: Tensor, stream: torch.cuda.Stream | None) -> None:
        self._event: torch.cuda.Event | None = None
        if source.is_cuda:
            self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._host.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(stream)
        else:
            self._host = source.clone()

    def is_ready(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> np.ndarray:
        if self._event is not None:
            self._event.synchronize()
        values: np.ndarray = self._host.numpy()
        return values


class Staging:
    """Where the host writes what the device is to get. Not to be written again before it has been read: with
    several taken in turn, that wait is over before it begins."""

    def __init__(self, like: Tensor) -> None:
        self._host = torch.zeros(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
        self._values: np.ndarray = self._host.numpy()
        self._sent = torch.cuda.Event() if like.is_cuda else None

    def begin(self) -> np.ndarray:
        """The memory to write to."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._values

    def send(self, target: Tensor, count: int, stream: torch.cuda.Stream | None) -> None:
        """Queue a copy of the first `count` words."""
        target[:count].copy_(self._host[:count], non_blocking=True)
        if self._sent is not None:
            self._sent.record(stream)
