"""Scheduling one step ahead: the next step is decided while this one runs, so its tokens are not known yet.

All that it takes is to count them. A token in flight has a position and will have KV; only its id is missing,
and the workers fill that in themselves. Upstream namesake: vllm/v1/core/sched/async_scheduler.py
(AsyncScheduler).
"""

from __future__ import annotations

from learnvllm.architecture.request import Request, RequestStatus
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.step_plan import StepPlan


class AsyncScheduler(Scheduler):
    """`Request.num_output_placeholders` counts tokens in flight: up when scheduled, down when they arrive.

    A preempted request keeps its count. Its token still arrives and is kept (its KV was whole when it was
    sampled), and until then the request is not admitted again. An aborted or finished request gets nothing
    any more.
    """

    def _get_num_new_tokens(self, request: Request, num_hit_tokens: int, plan: StepPlan) -> int:
        in_flight = request.num_output_placeholders
        if in_flight and (
            request.num_output_tokens + in_flight >= request.max_tokens
            or request.num_tokens + in_flight >= self.max_model_len
        ):
            return 0  # what is in flight completes it
        return super()._get_num_new_tokens(request, num_hit_tokens, plan)

    def _update_after_schedule(self, plan: StepPlan) -> None:
        super()._update_after_schedule(plan)
        for request in plan.requests:
            if request.num_computed_tokens == request.num_tokens + request.num_output_placeholders:
                request.num_output_placeholders += 1  # all known tokens computed: the step samples one

    def _append_sampled_tokens(
        self, request: Request, token_ids: list[int]
    ) -> tuple[list[int], RequestStatus | None]:
        request.num_output_placeholders -= len(token_ids)
        kept, final_status = super()._append_sampled_tokens(request, token_ids)
        if request.status is RequestStatus.RUNNING and final_status is None:
            # A block filled by a token in flight could not be named when it was scheduled; now it can.
            self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
        return kept, final_status
