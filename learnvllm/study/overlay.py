"""Your code in the engine: `--mine`, or LEARNVLLM_OVERLAY=passed|all|id,id for any program.

Whichever process imports a module that an exercise rebuilds gets it with the learner's members in place:
engine and worker processes inherit the variable, and `import learnvllm` there comes first of all.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

from learnvllm.architecture import envs
from learnvllm.architecture.errors import LearnVLLMError
from learnvllm.study.exercise import StudyError
from learnvllm.study.overlay_hook import Callback, OverlayFinder, import_exercise
from learnvllm.study.overlay_patch import apply_plan
from learnvllm.study.overlay_plan import Plan
from learnvllm.study.overlay_select import Selection, select

OVERLAY, SHADOW, _KERNELS = "LEARNVLLM_OVERLAY", "LEARNVLLM_SHADOW", "LEARNVLLM_CPU_KERNELS"
_HEAVY = ("learnvllm.model_layers", "learnvllm.executor_worker")
"""Packages that import torch: a front end leaves them to the engine process."""
_BEHIND_KERNELS = "learnvllm.model_layers.ops.torch_ref"
"""Compiled kernels stand before it: an exercise on it has them switched off."""

MAX_PARTS = 5
"""Shown of one exercise in the banner."""

_finder: OverlayFinder | None = None
_say_turns = False
active: list[Plan] = []
"""What this process runs of the learner's."""


def install_from_environment() -> None:
    """Called by `import learnvllm` where LEARNVLLM_OVERLAY is set. Ends a process that cannot have it."""
    words = envs.get(OVERLAY)
    try:
        if words:
            _install(select([words]).plans)
    except LearnVLLMError as error:
        raise SystemExit(f"learnvllm: {OVERLAY}={words}: {error}") from None


def activate(words: Iterable[str], *, shadow: bool = False) -> str:
    """For a command line: choose, put in place here and in all processes started from now on.

    Args:
        words: `passed`, `all`, ids.
        shadow: run the reference in lock-step and stop at the first difference.

    Returns:
        The banner that says which parts are the learner's.

    Raises:
        StudyError, ConfigError: there is nothing to run, or it cannot run; says what to do.
    """
    if active:
        raise StudyError(f"{OVERLAY} is set, and --mine given: use one of them.")
    selection = select(words)
    if not any(plan.parts for plan in selection.plans):
        raise StudyError(
            f"{', '.join(plan.exercise.id for plan in selection.plans)}: nothing in it differs from the "
            "reference, so there is nothing of yours to run."
        )
    os.environ[OVERLAY] = ",".join(plan.exercise.id for plan in selection.plans)
    if shadow:
        os.environ[SHADOW] = "1"
    with _saying_whose_turn_it_is():
        _install(selection.plans)
        # What is wrong with a file: better now than from a process started later.
        for plan in selection.plans:
            if not plan.exercise.module.startswith(_HEAVY):
                importlib.import_module(plan.exercise.module)
    return _banner(selection, shadow)


def needs_torch_kernels() -> bool:
    """Does something of the learner's stand behind the compiled kernels?"""
    return any(plan.exercise.module == _BEHIND_KERNELS for plan in active)


def _install(plans: list[Plan]) -> None:
    active[:] = plans
    for plan in plans:
        _make_importable(plan)
        if plan.parts:
            after_import(plan.exercise.module, partial(_apply, plan))
    if needs_torch_kernels():
        os.environ[_KERNELS] = "torch"
    if envs.get(SHADOW):
        from learnvllm.study import shadow

        shadow.install(plans, after_import)


def after_import(name: str, callback: Callback) -> None:
    """Call it with the module `name` once that is executed: now, if it has been."""
    _get_finder().callbacks.setdefault(name, []).append(callback)
    if name in sys.modules:
        callback(sys.modules[name])


@contextmanager
def only(plans: Iterable[Plan]) -> Iterator[None]:
    """While it lasts, modules imported anew get the code of these exercises alone."""
    finder = _get_finder()
    before, finder.callbacks = finder.callbacks, {}
    for plan in plans:
        _make_importable(plan)
        finder.callbacks.setdefault(plan.exercise.module, []).append(partial(_apply, plan))
    try:
        yield
    finally:
        finder.callbacks = before


def _get_finder() -> OverlayFinder:
    global _finder
    if _finder is None:
        _finder = OverlayFinder()
        sys.meta_path.insert(0, _finder)
    return _finder


def _make_importable(plan: Plan) -> None:
    exercise = plan.exercise
    _get_finder().exercises[exercise.module_name] = (exercise.path, exercise.module)


def _apply(plan: Plan, reference: ModuleType) -> None:
    if _say_turns:
        print(f" {plan.exercise.name}", end="", file=sys.stderr, flush=True)
    apply_plan(reference, import_exercise(plan.exercise.module_name), plan)


# --------------------------------------------------------------------------------------------------- saying


@contextmanager
def _saying_whose_turn_it_is() -> Iterator[None]:
    """A line of the names, each before its file is executed: who never comes back stands last in it."""
    global _say_turns
    print("Importing your code:", end="", file=sys.stderr, flush=True)
    _say_turns = True
    try:
        yield
    finally:
        _say_turns = False
        print(file=sys.stderr, flush=True)


def _banner(selection: Selection, shadow: bool) -> str:
    lines = ["Your code runs in this engine; the rest is the reference:"]
    width = max(len(plan.exercise.id) for plan in selection.plans)
    unproved = selection.unproved()
    for plan in selection.plans:
        told = _parts(plan) or "nothing differs from the reference"
        if plan.exercise.id in unproved:
            told += f"  (NOT PASSED as it is now: learnvllm check {plan.exercise.id})"
        lines.append(f"  {plan.exercise.id:<{width}}  {told}")
        if plan.exercise.flags:
            lines.append(f"  {'':<{width}}  (the engine calls it only with {plan.exercise.flags})")
        if plan.exercise.module == _BEHIND_KERNELS:
            lines.append(f"  {'':<{width}}  (compiled CPU kernels are off, so that yours are called)")
    if shadow:
        from learnvllm.study import shadow as shadow_module

        lines += shadow_module.banner(selection.plans)
    return "\n".join([*lines, *selection.notes])


def _parts(plan: Plan) -> str:
    """`Scheduler._admit, ._preempt`; no more than the class where all of it was to be written."""
    asked = {blank.member for blank in plan.exercise.blanks}
    told, last = [], ""
    for part in plan.parts:
        if part.member is not None and part.symbol not in asked:
            told.append(f".{part.member}" if part.symbol == last else str(part))
        elif part.symbol != last:
            told.append(part.symbol)
        last = part.symbol
    more = f" and {len(told) - MAX_PARTS} more" if len(told) > MAX_PARTS else ""
    return ", ".join(told[:MAX_PARTS]) + more
