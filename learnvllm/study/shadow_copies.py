"""A second copy of scheduler and KV cache beside the patched one: fresh modules under the same names.

They are imported while the first ones are out of sys.modules, so both refer to themselves throughout. What
both need, requests and configurations, is of architecture/ and shared.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

import learnvllm
from learnvllm.study import overlay
from learnvllm.study.exercise import EXERCISES_PACKAGE
from learnvllm.study.overlay_plan import Plan

SEAM = ("learnvllm.scheduling", "learnvllm.kv_cache")
"""Packages that are copied together, and compared at the scheduler."""


class ModuleCopy:
    """Copies of all modules of `packages` (a module counts as a package of its own).

    Args:
        plans: exercises whose code it is to run; none: the reference.
    """

    def __init__(self, packages: Sequence[str] = SEAM, plans: Sequence[Plan] = ()) -> None:
        self._packages, self._plans = tuple(packages), tuple(plans)
        names = [name for name in sys.modules if self._covers(name) and name.startswith("learnvllm.")]
        self.modules: dict[str, ModuleType] = {}
        with self.in_place():
            for name in sorted({*names, *packages}):
                importlib.import_module(name)

    def get(self, module: str, name: str) -> Any:
        """An object of the copy."""
        if module not in self.modules:
            with self.in_place():
                importlib.import_module(module)
        return getattr(self.modules[module], name)

    def translate(self, value: Any) -> Any:
        """A dataclass of the copied packages again, made of this copy's classes."""
        if isinstance(value, list | tuple):
            return type(value)(self.translate(item) for item in value)
        kind = type(value)
        if not (is_dataclass(value) and kind.__module__.startswith(self._packages)):
            return value
        names = [field.name for field in fields(value) if field.init]
        return self.get(kind.__module__, kind.__name__)(
            **{n: self.translate(getattr(value, n)) for n in names}
        )

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While it lasts, imports find the copy. No other thread may import meanwhile."""
        originals = {name: module for name, module in sys.modules.items() if self._covers(name)}
        self._exchange(originals, self.modules)
        try:
            with overlay.only(self._plans):
                yield
        finally:
            self.modules = {name: module for name, module in sys.modules.items() if self._covers(name)}
            self._exchange(self.modules, originals)

    def _covers(self, name: str) -> bool:
        packages = (*self._packages, EXERCISES_PACKAGE)
        return any(name == package or name.startswith(f"{package}.") for package in packages)

    def _exchange(self, old: dict[str, ModuleType], new: dict[str, ModuleType]) -> None:
        for name in old:
            del sys.modules[name]
        sys.modules.update(new)
        for package in self._packages:  # `import a.b` has also made b an attribute of a
            parent, _, child = package.rpartition(".")
            if package in new:
                setattr(sys.modules.get(parent, learnvllm), child, new[package])
