"""Counting tokens that are not there yet (fill-in, 35 minutes, 13 points).

With async scheduling the next step is decided while this one runs, so its tokens are not known. All it takes
is to count them: a token in flight has a position and will have KV, only its id is missing. Three short
methods, and the counter that underflowed in vLLM.

Not asked: How workers fill in the missing ids (Day 5), and the engine loop that keeps two steps in flight
(Day 2).

Read: docs/topics/scheduling/concepts.md
Check: learnvllm check scheduling.one_step_ahead
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
        # TODO: 0 if the tokens in flight complete the request (max_tokens, or self.max_model_len); otherwise
        # as the base class says.
        raise NotImplementedError("TODO: AsyncScheduler._get_num_new_tokens")

    def _update_after_schedule(self, plan: StepPlan) -> None:
        # TODO: After the base class: one more token is in flight for every request of the plan whose known
        # tokens are all computed now.
        raise NotImplementedError("TODO: AsyncScheduler._update_after_schedule")

    def _append_sampled_tokens(
        self, request: Request, token_ids: list[int]
    ) -> tuple[list[int], RequestStatus | None]:
        # TODO: What arrives is no longer in flight; then as the base class does. If the request runs on, let
        # the KV cache name the block that the token may have filled (kv_cache_manager.cache_blocks, up to the
        # computed tokens).
        raise NotImplementedError("TODO: AsyncScheduler._append_sampled_tokens")
