"""What must hold of the scheduler after every call: a request is in one place, and the place agrees with its
state.

Block ownership is checked by learnvllm/kv_cache/invariants.py. O(blocks): for tests and debugging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from learnvllm.architecture.request import RequestStatus

if TYPE_CHECKING:
    from learnvllm.scheduling.scheduler import Scheduler


def check_invariants(scheduler: Scheduler) -> None:
    """Raise AssertionError with the offending request or block."""
    running, waiting = scheduler.running, list(scheduler.waiting)
    ids = [request.request_id for request in running + waiting]
    assert len(ids) == len(set(ids)), f"a request is queued twice: {ids}"
    assert set(ids) == set(scheduler.requests), (
        f"queued {sorted(ids)}, unfinished {sorted(scheduler.requests)}"
    )
    for request in running:
        assert request.status is RequestStatus.RUNNING, f"{request.request_id} runs as {request.status!r}"
    for request in waiting:
        assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), (
            f"{request.request_id} waits as {request.status!r}"
        )
        assert request.num_computed_tokens == 0, f"{request.request_id} waits with computed tokens"
    if scheduler.scheduler_config.policy == "priority":
        assert running == sorted(running), (
            "the running list is out of order: the wrong request would give way"
        )
    limit = scheduler.scheduler_config.max_num_seqs
    assert len(running) <= limit, f"{len(running)} requests run, and max_num_seqs={limit}"
    tokens, counted = sum(r.num_prompt_tokens for r in waiting), scheduler.waiting.num_prompt_tokens
    assert tokens == counted, (
        f"those who wait have {tokens} prompt tokens, and the queue's num_prompt_tokens says {counted}"
    )
    for request in running + waiting:
        assert request.num_output_placeholders >= 0, f"{request.request_id}: a token nobody expected arrived"
        num_tokens = request.num_tokens + request.num_output_placeholders
        assert request.num_computed_tokens <= num_tokens, (
            f"{request.request_id}: more computed than there are tokens"
        )
    scheduler.kv_cache_manager.check_invariants(running)
