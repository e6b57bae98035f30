"""`--shadow`: the reference runs beside the learner's code and the engine stops where they first differ.

Days 3 and 4 are compared at the scheduler, decision by decision. Elsewhere each call of a learner's function
or method is made on a reference twin, too, and the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

from learnvllm.study.overlay_hook import Callback
from learnvllm.study.overlay_plan import Plan
from learnvllm.study.shadow_copies import SEAM

_CORE = "learnvllm.engine_core.core"
_UNCOMPARED = {
    _CORE: "it drives the scheduler and the executor, and neither can be driven twice",
    "learnvllm.engine_core.core_proc": "it owns the engine's threads and sockets",
}


def install(plans: list[Plan], after_import: Callable[[str, Callback], None]) -> None:
    """Called once all `plans` are to be put in place: what is registered now comes after them."""
    decided = [plan for plan in plans if plan.parts and plan.exercise.module.startswith(SEAM)]
    after_import(_CORE, partial(_watch_the_core, decided))
    for plan in plans:
        module = plan.exercise.module
        if plan.parts and not module.startswith(SEAM) and module not in _UNCOMPARED:
            after_import(module, partial(_mirror, plan))


def banner(plans: list[Plan]) -> list[str]:
    """What is compared, and what is not."""
    lines = ["The reference runs beside it (slow); the first difference ends the engine."]
    for plan in plans:
        why = _UNCOMPARED.get(plan.exercise.module)
        if why and plan.parts:
            lines.append(f"  Not compared: {plan.exercise.id}, because {why}.")
    return lines


def _watch_the_core(plans: list[Plan], core: ModuleType) -> None:
    from learnvllm.study.shadow_engine import watch

    watch(core.EngineCore, plans)


def _mirror(plan: Plan, reference: ModuleType) -> None:
    from learnvllm.study.shadow_mirror import mirror

    mirror(plan, reference)
