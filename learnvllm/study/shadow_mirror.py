"""Every call of a learner's function or method is made on a reference twin, too, and both are compared.

A class whose public methods are all the learner's keeps its state as it likes: there a twin lives beside each
object, gets the same calls and must look the same from outside. Otherwise each call gets a copy of the object
as it is, and both must leave it alike.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

from learnvllm.study.overlay_patch import mine_of, runs_in_pieces
from learnvllm.study.overlay_plan import Plan
from learnvllm.study.shadow_copies import ModuleCopy
from learnvllm.study.shadow_engine import MAY_BE_RIGHT, ShadowDivergence
from learnvllm.study.shadow_limit import time_limit, where
from learnvllm.study.shadow_loans import Loan
from learnvllm.study.shadow_values import Outcome, copy_object, first_difference, snapshot

TWIN = "_shadow_twin"
"""The attribute in which an object keeps its twin."""

CHANGED, UNCHANGED = "changes its argument", "leaves it as it is"

_local = threading.local()
_busy: ContextVar[frozenset[int]] = ContextVar("busy", default=frozenset())
"""Objects one of whose methods is running in this task: what it calls of its own is part of it."""


@contextmanager
def _unwatched() -> Iterator[None]:
    """While the reference runs, calls that reach a learner's code are nobody's business."""
    _local.depth = _depth() + 1
    try:
        yield
    finally:
        _local.depth -= 1


@contextmanager
def _within(value: Any) -> Iterator[None]:
    token = _busy.set(_busy.get() | {id(value)})
    try:
        yield
    finally:
        _busy.reset(token)


def _depth() -> int:
    return getattr(_local, "depth", 0)


def mirror(plan: Plan, reference: ModuleType) -> None:
    """Watch the parts of `plan`, which are in place in `reference`."""
    copy = ModuleCopy((plan.exercise.module,))
    for symbol in plan.exercise.symbols:
        members, twin = plan.owns(symbol), copy.get(plan.exercise.module, symbol)
        current = vars(reference)[symbol]
        if not isinstance(current, type):
            mine = mine_of(reference)
            if members and symbol in mine:
                mine[symbol] = _watch(mine[symbol], twin, plan, symbol)
        elif None not in members:
            public = {name for name, value in vars(twin).items() if _is_public_method(name, value)}
            if public and public <= set(members) and not is_dataclass(current):
                _keep_twins(current, twin, plan, sorted(public))
            else:
                for member in members:
                    _watch_method(current, twin, plan, str(member))


def _is_public_method(name: str, value: Any) -> bool:
    return isinstance(value, FunctionType) and not name.startswith("_")


def _can_be_watched(function: Any) -> bool:
    """What runs in pieces, between which anything may happen, cannot."""
    return isinstance(function, FunctionType) and not runs_in_pieces(function)


# ---------------------------------------------------------------------------------------- functions, methods


def _watch(
    mine: Callable[..., Any],
    theirs: Callable[..., Any],
    plan: Plan,
    name: str,
    copy: Callable[[Any, dict[int, Any]], Any] = snapshot,
) -> Callable[..., Any]:
    """Call both; the reference with copies of the arguments, which must be left alike, too, or with large
    tensors that both must leave alone.
    """
    if not _can_be_watched(mine):
        return mine
    signature, left_alone = inspect.signature(mine), dict[str, bool]()

    @wraps(mine)
    def both(*args: Any, **kwargs: Any) -> Any:
        if _depth():
            return mine(*args, **kwargs)
        named = _named(signature, args, kwargs)
        loan = Loan(named, left_alone)
        copies = copy((args, kwargs), loan.memo)
        if copies is None:
            return mine(*args, **kwargs)
        with time_limit():
            ours = _call(mine, args, kwargs)
        if changed := loan.changed():  # the reference would get what yours has made of it
            _compare(
                plan, name, ours, ours, dict.fromkeys(changed, CHANGED), dict.fromkeys(changed, UNCHANGED)
            )
        with _unwatched():
            reference = _call(theirs, *copies)
        _compare(plan, name, ours, reference, named, _named(signature, *copies))
        changed = loan.changed()
        _compare(plan, name, ours, ours, dict.fromkeys(changed, UNCHANGED), dict.fromkeys(changed, CHANGED))
        loan.learn()
        return _result(ours)

    return both


def _named(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their names."""
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:  # called wrongly, which it has said itself
        return {"arguments": args, **kwargs}


def _watch_method(cls: Any, twin_class: type, plan: Plan, name: str) -> None:
    """With a copy of the object, turned into one of the reference class, in the place of `self`."""
    mine = vars(cls).get(name)
    theirs = vars(twin_class).get(name)
    if not (_can_be_watched(mine) and _can_be_watched(theirs)) or name == "__init__":
        return

    def copy(call: tuple[tuple[Any, ...], dict[str, Any]], memo: dict[int, Any]) -> Any:
        (self, *args), kwargs = call
        twin = copy_object(self, memo)
        if twin is self:  # it cannot be copied, so it cannot be compared
            return None
        if type(self) is cls:
            with suppress(TypeError):  # another layout: what it calls of its own is the learner's, then
                object.__setattr__(twin, "__class__", twin_class)
        return (twin, *snapshot(args, memo)), snapshot(kwargs, memo)

    setattr(cls, name, _watch(mine, theirs, plan, f"{cls.__name__}.{name}", copy))  # type: ignore[arg-type]


def _keep_twins(cls: Any, twin_class: Any, plan: Plan, public: list[str]) -> None:
    """A twin is made where an object is, and gets each call of a public method that comes from outside."""
    original = cls.__init__

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        wanted = type(self) is cls and not _depth()
        copies = snapshot((args, kwargs)) if wanted else None
        original(self, *args, **kwargs)
        if copies is not None:
            with _unwatched():
                setattr(self, TWIN, twin_class(*copies[0], **copies[1]))

    cls.__init__ = __init__
    for name in public:
        method = vars(cls).get(name)
        if inspect.iscoroutinefunction(method):
            setattr(cls, name, _on_both_async(method, plan, f"{cls.__name__}.{name}"))
        elif _can_be_watched(method):
            setattr(cls, name, _on_both(method, plan, f"{cls.__name__}.{name}"))


def _on_both(mine: Callable[..., Any], plan: Plan, name: str) -> Callable[..., Any]:
    @wraps(mine)
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        twin = _twin_of(self)
        if twin is None:
            return mine(self, *args, **kwargs)
        copies = snapshot((args, kwargs))
        with _within(self), time_limit():
            ours = _call(mine, (self, *args), kwargs)
        with _unwatched():
            reference = _call(getattr(twin, mine.__name__), *copies)
        _compare(plan, name, ours, reference, *_outsides(self, twin))
        return _result(ours)

    return both


def _on_both_async(mine: Callable[..., Any], plan: Plan, name: str) -> Callable[..., Any]:
    """The twin follows when the learner's coroutine has ended: it has nothing to wait for any more."""

    def without_waiting(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        coroutine = function(*args, **kwargs)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        coroutine.close()
        return "would wait"

    @wraps(mine)
    async def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        twin = _twin_of(self)
        if twin is None:
            return await mine(self, *args, **kwargs)
        copies = snapshot((args, kwargs))
        with _within(self):
            try:
                ours = Outcome(await mine(self, *args, **kwargs))
            except ShadowDivergence:
                raise  # as in _call
            except Exception as error:
                ours = Outcome(error=error)
        with _unwatched():
            reference = _call(without_waiting, (getattr(twin, mine.__name__), *copies[0]), copies[1])
        _compare(plan, name, ours, reference, *_outsides(self, twin))
        return _result(ours)

    return both


def _twin_of(value: Any) -> Any:
    """None where it has none, or the call is part of another."""
    twin = None if _depth() or id(value) in _busy.get() else getattr(value, TWIN, None)
    if twin is not None and first_difference(*_outsides(value, twin)) is not None:
        setattr(value, TWIN, None)  # somebody has set an attribute between two calls: the twin is out of date
        return None
    return twin


def _outsides(value: Any, twin: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The public attributes that the reference has, of both."""
    names = [name for name in vars(twin) if not name.startswith("_")]
    return {n: getattr(value, n, "nothing") for n in names}, {n: getattr(twin, n) for n in names}


# -------------------------------------------------------------------------------------------------- calling


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    try:
        return Outcome(function(*args, **kwargs))
    except ShadowDivergence:
        raise  # a call within this one: it says more
    except Exception as error:
        return Outcome(error=error)


def _result(outcome: Outcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _compare(plan: Plan, name: str, ours: Outcome, reference: Outcome, after: Any, twin_after: Any) -> None:
    """Raises ShadowDivergence, the report printed, unless result and aftermath are alike."""
    what = "what it comes to"
    if (ours.error is None) is (reference.error is None):
        found = first_difference(ours.error or ours.value, reference.error or reference.value)
    else:
        found = "", ours, reference
    if found is None:
        found = first_difference(after, twin_after)
        what = "what it leaves behind"
    if found is None:
        return
    path, mine, theirs = found
    exercise = plan.exercise.id
    place = f"{what}, at {path}" if path else what
    lines = where(ours.error, [plan]) if ours.error is not None else []
    raised = "\n".join(["  Yours raised:", *(f"    {line}" for line in lines), "\n"]) if lines else ""
    text = (
        f"\n--shadow: {name} of {exercise}: your code and the reference differ for the first time.\n\n"
        f"  In {place}:\n    yours:          {_short(mine)}\n    the reference:  {_short(theirs)}\n\n{raised}"
        f"  Next: learnvllm check {exercise}. {MAY_BE_RIGHT}\n"
    )
    print(text, file=sys.stderr, flush=True)
    raise ShadowDivergence(
        f"--shadow: {name} of {exercise} differs in {place}: yours {_short(mine, 60)}, the reference's "
        f"{_short(theirs, 60)}. The log says more."
    )


def _short(value: Any, width: int = 300) -> str:
    if isinstance(value, Outcome):
        if value.error is not None:
            return f"raises {_short(value.error, width)}"
        return f"returns {_short(value.value, width)}"
    text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"
