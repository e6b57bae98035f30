"""How an engine ends under --shadow: every client with an unfinished request is told why, then it stops.

Put around EngineCore from outside; the core itself, or a learner's, knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import parent_process
from typing import Any

from learnvllm.architecture.errors import ServerError
from learnvllm.architecture.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason, RemoteError
from learnvllm.study.overlay_plan import Plan

MAY_BE_RIGHT = "Another decision may be right, too; then run without --shadow."


class ShadowDivergence(ServerError):
    """The learner's code and the reference have decided differently; the report has been printed."""


class _SaidAll(SystemExit):
    """Ends the process; unlike sys.exit's own, the engine does not log it."""


def watch(engine_core: type, plans: list[Plan]) -> None:
    """Every core made from now on has its scheduler shadowed, where `plans` decide; it ends in good order."""
    cls: Any = engine_core
    original_init, original_step = cls.__init__, cls.step

    def __init__(
        self: Any,
        config: Any,
        executor_class: Any,
        scheduler_class: Callable[..., Any],
        *args: Any,
        **more: Any,
    ) -> None:
        if plans:
            from learnvllm.study.shadow_scheduler import shadowed

            scheduler_class = shadowed(scheduler_class, plans)
        original_init(self, config, executor_class, scheduler_class, *args, **more)

    def step(self: Any) -> tuple[dict[int, EngineCoreOutputs], bool]:
        told: ShadowDivergence | None = vars(self).get("_shadow_told")
        if told is not None:
            _stop(told)
        try:
            outputs: tuple[dict[int, EngineCoreOutputs], bool] = original_step(self)
        except ShadowDivergence as error:
            self._shadow_told = error
            return _tell_clients(self.scheduler, str(error)), False
        return outputs

    cls.__init__, cls.step = __init__, step


def _tell_clients(scheduler: Any, message: str) -> dict[int, EngineCoreOutputs]:
    told: dict[int, EngineCoreOutputs] = {}
    error = RemoteError(ServerError.__name__, message)
    for request_id, request in scheduler.requests.items():
        output = EngineCoreOutput(request_id, [], finish_reason=FinishReason.ERROR, error=error)
        told.setdefault(request.client_index, EngineCoreOutputs(outputs=[])).outputs.append(output)
    return told


def _stop(error: ShadowDivergence) -> None:
    if parent_process() is not None:  # a process of its own: all has been said, a traceback would hide it
        raise _SaidAll(1)
    raise error
