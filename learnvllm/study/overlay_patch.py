"""Put the learner's members onto the reference's own classes and functions, which keep their identity.

So it does not matter who has imported them already, several exercises on one class combine, and objects
pickle under the names they always had. Only a class of another build (bases, slots, fields) is exchanged.
"""

from __future__ import annotations

import abc
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from learnvllm.architecture.errors import ConfigError
from learnvllm.study.overlay_plan import Plan, omitted_members

MINE = "__learnvllm_mine__"
"""In the globals of a target module: the learner's functions by name."""


def apply_plan(reference: ModuleType, mine: ModuleType, plan: Plan) -> None:
    """Make `reference` run the parts of `mine` that are the learner's.

    Afterwards both modules mean the same objects by the names of the targets.
    """
    omitted = omitted_members(plan.exercise)
    for symbol in plan.exercise.symbols:
        members = plan.owns(symbol)
        theirs, own = vars(reference)[symbol], vars(mine).get(symbol)
        if symbol in omitted and not members:
            continue  # a helper of the reference's: whatever they call so is for them alone
        if own is None or isinstance(own, type) is not isinstance(theirs, type):
            raise ConfigError(f"{plan.exercise.path} defines no {symbol} such as it has to be.")
        if isinstance(own, type) and None not in members:
            _patch_class(theirs, own, [member for member in members if member is not None])
        elif members:
            theirs = _exchange(reference, symbol, theirs, own)
        exchange_references(own, theirs, [mine])


def mine_of(reference: ModuleType) -> dict[str, Callable[..., Any]]:
    """The learner's functions that stand in for functions of `reference`. Changes to it take effect."""
    mine: dict[str, Callable[..., Any]] = vars(reference).setdefault(MINE, {})
    return mine


# -------------------------------------------------------------------------------------------------- classes


def _patch_class(theirs: type, own: type, members: list[str]) -> None:
    for member in members:
        if member in vars(own):
            setattr(theirs, member, vars(own)[member])
        elif any(member in vars(base) for base in theirs.__mro__[1:]):
            delattr(theirs, member)  # an override that they do without; a helper may stay, nobody calls it
    if "__eq__" in members and "__hash__" not in members:
        theirs.__hash__ = vars(own).get("__hash__")  # type: ignore[assignment, method-assign]
    for cell in _class_cells(own):
        cell.cell_contents = theirs
    abc.update_abstractmethods(theirs)


def _class_cells(own: type) -> Iterator[CellType]:
    """The cell in which zero-argument super() looks for its class: one that all methods share."""
    seen: set[int] = set()
    waiting: list[Any] = list(vars(own).values())
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, property):
            waiting += [value.fget, value.fset, value.fdel]
        elif isinstance(value, FunctionType):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
                if name != "__class__":
                    waiting += _content(cell)  # a function inside a decorator's
                elif _content(cell) == [own]:
                    yield cell
        else:
            waiting += [getattr(value, name, None) for name in ("__func__", "__wrapped__", "func")]


def _content(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # empty
        return []


# ------------------------------------------------------------------------------------------------ exchanges


def _exchange(reference: ModuleType, symbol: str, theirs: Any, own: Any) -> Any:
    """A function, or a class as a whole. Returns what the name stands for from now on."""
    plain = isinstance(theirs, FunctionType) and isinstance(own, FunctionType)
    if plain and not theirs.__closure__ and not runs_in_pieces(theirs) and not runs_in_pieces(own):
        # The same object, going elsewhere: default arguments and tables that hold it need no change.
        text = f"def {symbol}(*args, **kwargs):\n    return {MINE}[{symbol!r}](*args, **kwargs)"
        stand_in: dict[str, Any] = {}
        exec(compile(text, "<the learner's code>", "exec"), stand_in)
        mine_of(reference)[symbol] = own
        theirs.__code__ = stand_in[symbol].__code__
        theirs.__defaults__ = theirs.__kwdefaults__ = None
        theirs.__wrapped__ = own  # for inspect.signature
        return theirs
    exchange_references(theirs, own, _our_modules())
    return own


def runs_in_pieces(function: Any) -> bool:
    """Callers may ask whether a function is one of these, so a stand-in would have to be, too."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_one(function) for is_one in kinds)


def _our_modules() -> list[ModuleType]:
    """The learner's files among them."""
    return [module for name, module in list(sys.modules.items()) if name.startswith("learnvllm")]


def exchange_references(old: Any, new: Any, modules: list[ModuleType]) -> None:
    """Wherever the names, tables and default arguments of `modules` hold `old`, let them hold `new`."""
    if old is new:
        return
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is not old and name in (MINE, "__builtins__"):
                continue
            changed = _with(value, old, new)
            if changed is not value:
                vars(module)[name] = changed
            _change_defaults(value, old, new)
            if isinstance(value, type) and value.__module__ == module.__name__:
                for member in list(vars(value).values()):
                    _change_defaults(member, old, new)
    if isinstance(old, type) and isinstance(new, type):
        subclasses: list[type] = old.__subclasses__()
        for subclass in subclasses:
            if subclass is not new and old in subclass.__bases__ and subclass.__module__ in sys.modules:
                _change_bases(subclass, old, new, modules)


def _with(value: Any, old: Any, new: Any) -> Any:
    """`value`, or a table like it with `new` for `old`. Dicts and lists are changed in place."""
    if value is old:
        return new
    if type(value) is tuple and any(item is old for item in value):
        return tuple(new if item is old else item for item in value)
    if type(value) is list:
        value[:] = [new if item is old else item for item in value]
    elif type(value) is dict:
        for key, item in value.items():
            if item is old:
                value[key] = new
    return value


def _change_defaults(function: Any, old: Any, new: Any) -> None:
    if isinstance(function, FunctionType):
        if function.__defaults__:
            function.__defaults__ = tuple(_with(value, old, new) for value in function.__defaults__)
        if function.__kwdefaults__:
            _with(function.__kwdefaults__, old, new)


def _change_bases(subclass: type, old: type, new: type, modules: list[ModuleType]) -> None:
    if sys.modules[subclass.__module__] not in modules:
        return
    try:
        subclass.__bases__ = tuple(new if base is old else base for base in subclass.__bases__)
    except TypeError as error:
        raise ConfigError(
            f"{old.__name__} cannot be exchanged, as {subclass.__name__} is built on it: {error}. Keep its "
            "bases, slots and fields as they are in the starter."
        ) from None
