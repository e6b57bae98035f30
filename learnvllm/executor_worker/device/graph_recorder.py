"""CUDA graphs without CUDA: writes down every torch operator a function runs, and runs the list again.

As in a real graph, Python runs only while recording: branches taken, sizes and numbers are frozen, tensors
are the same memory each time, and an operator that hands a value to the host is an error. So what tests find
here (a stale number, a buffer that was replaced) would be wrong in a CUDA graph too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

_ASKS_HOST = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::masked_select"}


class RecorderBackend:
    """A GraphBackend for any device."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        with _Recorder() as recorder:
            function()
        return recorder.replay


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, Any, Any, Any]] = []
        """(operator, args, kwargs, result), the result's memory being where each replay puts its own."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As memory.PeakMemory: nothing is compiled here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        indices = args[1] if func.name() in ("aten::index.Tensor", "aten::index_put_") else ()
        by_mask = any(i is not None and i.dtype == torch.bool for i in indices)  # as many as are true
        if by_mask or func.name().split(".")[0] in _ASKS_HOST:
            raise RuntimeError(f"{func.name()} asks the device for a value while a graph is recorded.")
        result = func(*args, **kwargs)
        self.operators.append((func, args, kwargs, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, recorded in self.operators:
            again = func(*args, **kwargs)
            for kept, new in zip(tree_flatten(recorded)[0], tree_flatten(again)[0]):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != new.data_ptr():
                    kept.copy_(new)
