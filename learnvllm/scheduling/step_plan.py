"""A step while it is being decided: what is left of the budget, and the lists the workers will get.

Upstream keeps these as local variables of Scheduler.schedule (vllm/v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from learnvllm.architecture.request import Request
from learnvllm.architecture.step import BlockIds, CachedRequestData, NewRequestData, SchedulerOutput
from learnvllm.kv_cache.manager import KVCacheBlocks


class StepPlan:
    """Grows request by request; nothing is ever taken out again."""

    __slots__ = (
        "cached_reqs",
        "new_reqs",
        "num_scheduled_tokens",
        "preempted",
        "prefill_budget",
        "promised_blocks",
        "requests",
        "token_budget",
    )

    def __init__(self, token_budget: int, prefill_budget: int) -> None:
        self.token_budget = token_budget
        self.prefill_budget = prefill_budget
        """What prompts may take of it. Who decodes, with one token left to compute, is served beside it."""
        self.requests: list[Request] = []
        """The batch, in order."""
        self.num_scheduled_tokens: dict[str, int] = {}
        self.new_reqs: list[NewRequestData] = []
        self.cached_reqs = CachedRequestData()
        self.preempted: list[str] = []
        self.promised_blocks = 0
        """Blocks that running requests will still need for tokens already known."""

    def add_running(self, request: Request, num_tokens: int, new_blocks: KVCacheBlocks) -> None:
        """A request the workers know: they get what is new."""
        cached = self.cached_reqs
        cached.req_ids.append(request.request_id)
        cached.new_block_ids.append(None if new_blocks.is_empty else new_blocks.get_block_ids())
        cached.num_computed_tokens.append(request.num_computed_tokens)
        self._add(request, num_tokens)

    def add_new(self, request: Request, num_tokens: int, block_ids: BlockIds) -> None:
        """A request the workers do not know: they get everything. Copies, as a step may run later."""
        self.new_reqs.append(
            NewRequestData(
                req_id=request.request_id,
                token_ids=list(request.all_token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling_params=request.sampling_params,
                eos_token_ids=request.eos_token_ids,
                block_ids=block_ids,
                num_computed_tokens=request.num_computed_tokens,
            )
        )
        self._add(request, num_tokens)

    def to_scheduler_output(self, step_id: int, finished_req_ids: set[str]) -> SchedulerOutput:
        return SchedulerOutput(
            step_id=step_id,
            scheduled_new_reqs=self.new_reqs,
            scheduled_cached_reqs=self.cached_reqs,
            num_scheduled_tokens=self.num_scheduled_tokens,
            total_num_scheduled_tokens=sum(self.num_scheduled_tokens.values()),
            finished_req_ids=finished_req_ids,
            preempted_req_ids=set(self.preempted),
        )

    def _add(self, request: Request, num_tokens: int) -> None:
        self.requests.append(request)
        self.num_scheduled_tokens[request.request_id] = num_tokens
        self.token_budget -= num_tokens
        if request.num_uncomputed_tokens > 1:
            self.prefill_budget -= num_tokens
