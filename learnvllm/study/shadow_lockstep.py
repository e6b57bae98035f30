"""Two schedulers, the learner's and the reference's, given the same calls and compared after each.

Everything that one can see from outside counts: the step that is decided, what clients are told, both queues,
every block table, every block's holders and name, and the order in which free blocks will be handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np

from learnvllm.architecture.request import Request
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.study.shadow_engine import ShadowDivergence
from learnvllm.study.shadow_limit import time_limit
from learnvllm.study.shadow_values import Outcome

Operation = Literal["add_request", "schedule", "update_from_output", "finish_requests", "reset_prefix_cache"]
View = dict[str, Any]
"""What can be seen, by what it is called in a report."""

_IGNORED = {"timestamp", "events"}
"""Moments in time: no two calls happen in the same."""


@dataclass
class Difference:
    """The first call after which the two are not alike."""

    operation: Operation
    what: list[str]
    """Names of the views that differ."""
    mine: View
    theirs: View
    before: View
    """The state that both had before the call."""
    error: BaseException | None = None
    """What the learner's code raised, where the reference did not."""
    step: int | None = None
    subject: str = ""
    """What the call was about: a request's id, the ids of a step."""


class Lockstep:
    """Calls both and compares. After a difference it is of no more use."""

    def __init__(self, mine: Any, theirs: Any) -> None:
        self.mine, self.theirs = mine, theirs
        self.num_steps = 0
        self._state: View = view_of_state(theirs)

    def __call__(self, operation: Operation, *args: Any) -> tuple[Outcome, Difference | None]:
        """What the learner's scheduler did, and whether the reference did the same."""
        twin_args = [_twin(arg, self.theirs) for arg in args]
        with time_limit():
            mine = _call(getattr(self.mine, operation), args)
        theirs = _call(getattr(self.theirs, operation), twin_args)
        difference = self._compare(operation, mine, theirs, args)
        self.num_steps += operation == "schedule"
        return mine, difference

    def _compare(
        self, operation: Operation, mine: Outcome, theirs: Outcome, args: tuple[Any, ...]
    ) -> Difference | None:
        before, error = self._state, mine.error
        seen, expected = view_of_call(mine), view_of_call(theirs)
        what = unlike(seen, expected)
        if error is None or not what:
            state, self._state = _call(view_of_state, [self.mine]), view_of_state(self.theirs)
            if state.error is not None:  # it cannot even be looked at
                error, what = state.error, ["state"]
                seen["state"] = f"cannot be read: {type(error).__name__}: {error}"
            else:
                what += unlike(state.value, self._state)
                seen, expected = seen | state.value, expected | self._state
        if not what:
            return None
        step = args[0].step_id if operation == "update_from_output" else self.num_steps
        return Difference(operation, what, seen, expected, before, error, step, _subject(args))


def _call(function: Callable[..., Any], args: Iterable[Any]) -> Outcome:
    try:
        return Outcome(function(*args))
    except ShadowDivergence:
        raise  # something that is compared call by call, and has been told: it says more
    except Exception as error:
        return Outcome(error=error)


def _twin(value: Any, scheduler: Any) -> Any:
    """An argument for the reference: nothing that either changes may be shared."""
    if isinstance(value, Request):
        return Request(
            value.request_id,
            list(value.prompt_token_ids),
            value.sampling_params,
            eos_token_ids=value.eos_token_ids,
            arrival_time=value.arrival_time,
            priority=value.priority,
            cache_salt=value.cache_salt,
            client_index=value.client_index,
            block_hasher=scheduler.block_hasher,
        )
    if isinstance(value, ModelRunnerOutput):
        return replace(value, sampled_token_ids=[list(ids) for ids in value.sampled_token_ids])
    return list(value) if isinstance(value, list) else value


def _subject(args: tuple[Any, ...]) -> str:
    first = args[0] if args else ""
    if isinstance(first, SchedulerOutput):
        return ", ".join(first.num_scheduled_tokens)
    if isinstance(first, list):
        return ", ".join(map(str, first))
    return str(getattr(first, "request_id", ""))


def unlike(mine: View, theirs: View) -> list[str]:
    """The names under which they do not say the same."""
    return [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]


# -------------------------------------------------------------------------------------------------- looking


def view_of_call(outcome: Outcome) -> View:
    """What whoever made the call is told."""
    if outcome.error is not None:
        return {"raises": type(outcome.error).__name__}
    if isinstance(outcome.value, SchedulerOutput):
        return view_of_step(outcome.value)
    return {"returns": plain(outcome.value)}


def view_of_step(output: SchedulerOutput) -> View:
    """A decision. Lists where the order is part of it."""
    cached = output.scheduled_cached_reqs
    return {
        "step": output.step_id,
        "tokens scheduled": list(output.num_scheduled_tokens.items()),
        "total": output.total_num_scheduled_tokens,
        "admitted": [
            (new.req_id, new.num_computed_tokens, _ids(new.block_ids)) for new in output.scheduled_new_reqs
        ],
        "tokens sent": {new.req_id: list(new.token_ids) for new in output.scheduled_new_reqs},
        "new blocks": [
            (req_id, computed, None if blocks is None else _ids(blocks))
            for req_id, computed, blocks in zip(
                cached.req_ids, cached.num_computed_tokens, cached.new_block_ids
            )
        ],
        "preempted": sorted(output.preempted_req_ids),
        "finished": sorted(output.finished_req_ids),
    }


def view_of_state(scheduler: Any) -> View:
    """All that another scheduler would have to have in common to decide alike from here on."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    requests = scheduler.requests.values()
    names = {
        f"{name.hex()[:8]}{f' (group {index})' if index else ''}": block.block_id
        for index, group in enumerate(pool.cached_blocks)
        for name, block in group.items()
    }
    return {
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in islice(scheduler.waiting, len(requests) + 1)],
        "prompt tokens waiting": scheduler.waiting.num_prompt_tokens,
        "requests": {request.request_id: _view_of_request(request) for request in requests},
        "block tables": {r.request_id: _ids(manager.get_block_ids(r.request_id)) for r in requests},
        "block hashes": {r.request_id: [name.hex()[:8] for name in r.block_hashes] for r in requests},
        "holders of blocks": [block.ref_count for block in pool.blocks],
        "names of blocks": [block.block_hash.hex()[:8] if block.block_hash else "" for block in pool.blocks],
        "findable names": names,
        "free blocks": pool.get_num_free_blocks(),
        "free queue": [block.block_id for block in islice(pool.free_block_queue, pool.num_blocks + 1)],
        "found again": [block.reused for block in pool.blocks],
    }


def _view_of_request(request: Request) -> View:
    told = {
        "computed": request.num_computed_tokens,
        "known": request.num_tokens,
        "status": request.status.name,
    }
    others = {
        "in flight": request.num_output_placeholders,
        "preemptions": request.num_preemptions,
        "known at preemption": max(request.num_tokens_at_preemption, 0),
        "from the cache": max(request.num_cached_tokens, 0),
    }
    return told | {name: value for name, value in others.items() if value}


def _ids(blocks: Iterable[Iterable[int]]) -> list[list[int]]:
    return [list(group) for group in blocks]


def plain(value: Any) -> Any:
    """Dicts and lists all the way down, without what differs from call to call."""
    if isinstance(value, msgspec.Struct):
        told = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: plain(item) for name, item in told.items() if name not in _IGNORED}
    if is_dataclass(value) and not isinstance(value, type):
        told = {f.name: getattr(value, f.name) for f in fields(value)}
        return {name: plain(item) for name, item in told.items() if name not in _IGNORED}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value


@dataclass
class History:
    """The calls so far, to be made again on another pair."""

    limit: int
    calls: list[tuple[Operation, tuple[Any, ...]]] = field(default_factory=list)
    complete: bool = True

    def add(self, operation: Operation, args: tuple[Any, ...]) -> None:
        if len(self.calls) < self.limit:
            self.calls.append((operation, tuple(_frozen(arg) for arg in args)))
        else:
            self.complete = False

    def diverges(self, pair: Lockstep) -> bool:
        """Whether the two schedulers of `pair` part at one of these calls."""
        for operation, args in self.calls:
            args = tuple(arg(pair.mine) if callable(arg) else arg for arg in args)
            if pair(operation, *args)[1] is not None:
                return True
        return False


def _frozen(value: Any) -> Any:
    """A request changes from here on: instead of it, how to make one like it for a scheduler."""
    if isinstance(value, Request):
        spare = _twin(value, _NoHasher)
        return lambda scheduler: _twin(spare, scheduler)
    return _twin(value, None)


class _NoHasher:
    block_hasher = None
