"""The scheduler that an engine gets under --shadow: the learner's, with the reference in lock-step behind it.

When the two part, the step in question is neither executed nor taken in: ShadowDivergence is raised instead.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.messages import EngineCoreOutputs, SchedulerStats
from learnvllm.architecture.request import BlockHasher, Request, RequestStatus
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.architecture.tracing import StepTracer
from learnvllm.study.overlay_plan import Plan
from learnvllm.study.shadow_copies import ModuleCopy
from learnvllm.study.shadow_engine import ShadowDivergence
from learnvllm.study.shadow_lockstep import Difference, History, Lockstep, Operation
from learnvllm.study.shadow_report import headline, report

MAX_REPLAYED_CALLS = 20_000
"""Calls that are remembered to find out which exercise it was."""
_NAMES = ("Scheduler", "AsyncScheduler")


class ShadowScheduler:
    """Stands where the engine core expects a scheduler (scheduling/interface.py).

    Args:
        plans: the exercises whose code decides here.
        make: builds a scheduler from one copy of the modules; None: from those in place, the learner's.
    """

    def __init__(self, plans: list[Plan], make: Callable[[ModuleCopy | None], Any]) -> None:
        self._plans, self._make = plans, make
        self._mine = make(None)
        self._both = Lockstep(self._mine, make(ModuleCopy()))
        self._history = History(MAX_REPLAYED_CALLS if len(plans) > 1 else 0)
        self._failure: str | None = None

    @property
    def block_hasher(self) -> BlockHasher | None:
        """Called by a request when it knows more tokens; for a new one on another thread than the rest."""
        mine: BlockHasher | None = self._mine.block_hasher
        if mine is None:
            return None

        def hasher(request: Request) -> list[bytes]:
            try:
                return mine(request)
            except Exception as error:
                if request.request_id not in self._mine.requests and self._failure is None:
                    both = {"block hashes": "an error"}, {"block hashes": "none"}
                    self._fail(
                        Difference(
                            "add_request", ["block hashes"], *both, {}, error, None, request.request_id
                        )
                    )
                raise

        return hasher

    def add_request(self, request: Request) -> None:
        self._run("add_request", request)

    def schedule(self) -> SchedulerOutput:
        output: SchedulerOutput = self._run("schedule")
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs: dict[int, EngineCoreOutputs] = self._run(
            "update_from_output", scheduler_output, model_runner_output
        )
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str], finished_status: RequestStatus
    ) -> list[tuple[str, int]]:
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        ended: list[tuple[str, int]] = self._run("finish_requests", ids, finished_status)
        return ended

    def reset_prefix_cache(self) -> bool:
        return bool(self._run("reset_prefix_cache"))

    def has_requests(self) -> bool:
        return self._failure is not None or self._mine.has_requests()  # a failure waits to be told

    def make_stats(self) -> SchedulerStats:
        self._both.theirs.make_stats()  # counters begin anew on both sides
        stats: SchedulerStats = self._mine.make_stats()
        return stats

    def __getattr__(self, name: str) -> Any:
        """What changes nothing: counts, `running`, for whoever looks at a scheduler."""
        return getattr(self._mine, name)

    # ---------------------------------------------------------------------------------------- when they part

    def _run(self, operation: Operation, *args: Any) -> Any:
        """What the learner's scheduler returns or raises, if that is what the reference did."""
        if self._failure is not None:
            raise ShadowDivergence(self._failure)
        self._history.add(operation, args)
        try:
            outcome, difference = self._both(operation, *args)
        except ShadowDivergence as error:
            self._failure = str(error)
            raise
        if difference is not None:
            self._fail(difference)
            raise ShadowDivergence(self._failure)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _fail(self, difference: Difference) -> None:
        suspects, proved = self._find_suspects()
        self._failure = headline(difference, suspects)
        print(f"\n{report(difference, suspects, proved)}\n", file=sys.stderr, flush=True)

    def _find_suspects(self) -> tuple[list[Plan], bool]:
        """The exercises that differ when nothing else is the learner's; all, where that cannot be told."""
        if len(self._plans) == 1 or not self._history.complete:
            return self._plans, len(self._plans) == 1
        found = [
            plan
            for plan in self._plans
            if self._history.diverges(
                Lockstep(self._make(ModuleCopy(plans=[plan])), self._make(ModuleCopy()))
            )
        ]
        return found, True


def shadowed(scheduler_class: Callable[..., Any], plans: list[Plan]) -> Callable[..., Any]:
    """A scheduler factory for EngineCore in place of `scheduler_class`, if that is one of ours.

    Args:
        plans: the exercises whose code decides in it.
    """
    name = getattr(scheduler_class, "__name__", "")
    if name not in _NAMES or not isinstance(scheduler_class, type):
        return scheduler_class
    home = "learnvllm.scheduling." + ("async_scheduler" if name == "AsyncScheduler" else "scheduler")

    def make(config: EngineConfig, kv_cache_config: Any, tracer: StepTracer | None = None) -> ShadowScheduler:
        cache = config.cache_config
        if cache.prefix_caching_hash_seed == "random":  # each would draw its own; names are to be compared
            seed = secrets.token_hex(16)
            config = replace(config, cache_config=replace(cache, prefix_caching_hash_seed=seed))

        def make_one(copy: ModuleCopy | None) -> Any:
            if copy is None:
                return scheduler_class(config, kv_cache_config, tracer)
            return copy.get(home, name)(config, copy.translate(kv_cache_config), None)

        return ShadowScheduler(plans, make_one)

    return make
