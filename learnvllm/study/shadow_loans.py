"""Large tensors, the KV cache before all, are lent to the reference where it is known to leave them alone.

PyTorch counts the changes made to a tensor (`_version`). What the reference did not change in a copy at the
first call, it gets as it is from then on; and if your code changes it, the count tells.
"""

from __future__ import annotations

import sys
from typing import Any

LARGE = 2**18
"""Bytes from which on a tensor is lent. Smaller ones are copied each time, and compared number by number."""


class Loan:
    """The large tensors among one call's arguments, and what the reference gets in their place.

    Args:
        arguments: of the learner's call, by name.
        leaves_alone: what is known of the reference, by argument; one dict for all calls of a function.
    """

    def __init__(self, arguments: dict[str, Any], leaves_alone: dict[str, bool]) -> None:
        self._leaves_alone = leaves_alone
        tensors = _tensors(arguments)
        large = {name: tensor for name, tensor in tensors.items() if _is_large(tensor)}
        lent = {name for name in large if leaves_alone.get(name, False) and not large[name].is_inference()}
        # One count serves all tensors that share memory, so none may be changed that shares it with one lent.
        others = {_address(tensor) for name, tensor in tensors.items() if name not in lent}
        self.lent = {
            name: large[name] for name in large if name in lent and _address(large[name]) not in others
        }
        self._copies = {name: _counted_copy(large[name]) for name in large if name not in self.lent}
        self._counts = {name: tensor._version for name, tensor in {**self.lent, **self._copies}.items()}
        self.memo: dict[int, Any] = {
            id(large[name]): given for name, given in {**self._copies, **self.lent}.items()
        }
        """For `snapshot`: what it need not copy any more."""

    def changed(self) -> list[str]:
        """The arguments that were lent and are no longer what they were."""
        return [name for name, tensor in self.lent.items() if tensor._version != self._counts[name]]

    def learn(self) -> None:
        """Call it after the reference: what it has changed is copied from now on."""
        for name, tensor in {**self.lent, **self._copies}.items():
            alone = tensor._version == self._counts[name]
            self._leaves_alone[name] = alone and self._leaves_alone.get(name, True)


def _tensors(arguments: dict[str, Any]) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}


def _is_large(tensor: Any) -> bool:
    return bool(tensor.numel() * tensor.element_size() >= LARGE)


def _address(tensor: Any) -> int:
    """Of the memory that it is a view of."""
    return int(tensor.untyped_storage().data_ptr())


def _counted_copy(tensor: Any) -> Any:
    """Tensors that are made in inference mode, as steps are, count no changes; this one does."""
    import torch

    with torch.inference_mode(False):
        return tensor.detach().clone()
