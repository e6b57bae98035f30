"""Copy and compare whatever functions are given and give back: our own objects, containers, tensors.

What cannot be copied and does not change (a tokenizer, a library's object) is shared; moments in time, which
no two calls have in common, are not compared.
"""

from __future__ import annotations

import asyncio
import copy
import math
import sys
from collections import deque
from dataclasses import dataclass
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np

_SHARED = {"Tokenizer", "EngineConfig"}
"""Classes of ours whose objects do not change, and are large."""
_IGNORED = {"timestamp", "events", "metrics", "stats", "arrival_time", "_shadow_twin"}
_PLAIN = (int, float, str, bytes, bool, type(None), Enum, FunctionType, MethodType, ModuleType, type)
RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""Tolerance for tensors: sums in another order are no mistake."""


@dataclass
class Outcome:
    """What a call came to."""

    value: Any = None
    error: BaseException | None = None


def snapshot(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy that stays as it is while `value` changes. What is shared within it stays shared."""
    memo = {} if memo is None else memo
    if isinstance(value, _PLAIN):
        return value
    if id(value) not in memo:
        memo[id(value)] = value  # for what refers back to itself
        memo[id(value)] = _copy(value, memo)
        memo.setdefault(-id(value), value)  # keeps it alive, so that its id stays its own
    return memo[id(value)]


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if isinstance(value, list | set | deque):
        return kind(snapshot(item, memo) for item in value)
    if isinstance(value, tuple):
        items = [snapshot(item, memo) for item in value]
        return kind(*items) if hasattr(kind, "_fields") else tuple(items)
    if isinstance(value, dict):
        new = copy.copy(value)
        new.update((key, snapshot(item, memo)) for key, item in value.items())
        return new
    if isinstance(value, np.ndarray):
        return value.copy()
    if _is_tensor(value):
        return value.detach().clone()
    if isinstance(value, asyncio.Event):
        event = asyncio.Event()
        if value.is_set():
            event.set()
        return event
    if _is_ours(value) and kind.__name__ not in _SHARED:
        return copy_object(value, memo)
    try:
        return copy.deepcopy(value) if kind.__name__ == "DecodeStream" else value
    except TypeError:
        return value


def copy_object(value: Any, memo: dict[int, Any]) -> Any:
    """A new object of ours; the same, where there can be no copy."""
    try:
        new = copy.copy(value)
    except TypeError:
        return value
    memo[id(value)] = new
    for name, item in _attributes(value).items():
        if name == "_shadow_twin":
            continue
        changed = snapshot(item, memo)
        if changed is not item:
            try:
                object.__setattr__(new, name, changed)
            except (AttributeError, TypeError):
                msgspec.structs.force_setattr(new, name, changed)
    return new


def first_difference(mine: Any, theirs: Any) -> tuple[str, Any, Any] | None:
    """(where, mine, theirs) of the first thing that is not alike; None: nothing."""
    return _differ(mine, theirs, "", set())


def _differ(mine: Any, theirs: Any, path: str, seen: set[tuple[int, int]]) -> tuple[str, Any, Any] | None:
    if mine is theirs or (id(mine), id(theirs)) in seen:
        return None
    seen.add((id(mine), id(theirs)))
    if isinstance(mine, BaseException) and isinstance(theirs, BaseException):
        return None if type(mine).__name__ == type(theirs).__name__ else (path, mine, theirs)
    if isinstance(mine, float) and isinstance(theirs, float):
        return None if mine == theirs or (math.isnan(mine) and math.isnan(theirs)) else (path, mine, theirs)
    if isinstance(mine, list | tuple | deque) and isinstance(theirs, list | tuple | deque):
        if len(mine) != len(theirs):
            return path, mine, theirs
        pairs = [(f"{path}[{index}]", a, b) for index, (a, b) in enumerate(zip(mine, theirs))]
    elif isinstance(mine, dict) and isinstance(theirs, dict):
        if mine.keys() != theirs.keys():
            return path, mine, theirs
        pairs = [(f"{path}[{key!r}]", mine[key], theirs[key]) for key in theirs if key not in _IGNORED]
    elif _is_array(mine) or _is_array(theirs):
        return None if _close(mine, theirs) else (path, mine, theirs)
    elif isinstance(mine, asyncio.Event) and isinstance(theirs, asyncio.Event):
        return (
            None if mine.is_set() == theirs.is_set() else (f"{path}.is_set()", mine.is_set(), theirs.is_set())
        )
    elif _is_ours(mine) and _is_ours(theirs):
        if type(mine).__name__ != type(theirs).__name__:
            return path, mine, theirs
        ours = _attributes(mine)
        pairs = [
            (f"{path}.{name}", ours.get(name, "nothing"), item)
            for name, item in _attributes(theirs).items()
            if name not in _IGNORED
        ]
    elif isinstance(mine, _PLAIN) or isinstance(theirs, _PLAIN) or isinstance(mine, set):
        return None if mine == theirs or callable(mine) else (path, mine, theirs)
    else:  # a library's object: what it holds is its own affair
        return None if type(mine) is type(theirs) else (path, mine, theirs)
    return next((found for p, a, b in pairs if (found := _differ(a, b, p, seen)) is not None), None)


def _is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("learnvllm")


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and not name.startswith("__"):
                found[name] = getattr(value, name)
    return found


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or _is_tensor(value)


def _close(mine: Any, theirs: Any) -> bool:
    if type(mine) is not type(theirs) or mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    if isinstance(mine, np.ndarray):
        numeric = mine.dtype.kind == "f"
        return (
            bool(np.allclose(mine, theirs, RELATIVE, ABSOLUTE, equal_nan=True))
            if numeric
            else bool((mine == theirs).all())
        )
    import torch

    if torch.equal(mine, theirs):  # needs no memory, so it comes first: a KV cache is large
        return True
    floating = mine.is_floating_point()
    return floating and torch.allclose(mine.float(), theirs.float(), RELATIVE, ABSOLUTE, equal_nan=True)
