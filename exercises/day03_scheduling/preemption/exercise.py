"""When the blocks run out (fill-in, 40 minutes, 17 points).

Requests grow, and one day no block is free. Then the last in line gives all of its blocks back, waits first
in the queue, and computes its tokens again later. You write the loop that serves those who run, the choice of
who gives way, and what giving way means for a request: it loses work, never a token.

Not asked: How many tokens a request gets (_get_num_new_tokens) and who is admitted (_admit): both are there.

Read: docs/topics/scheduling/concepts.md
Check: learnvllm check scheduling.preemption
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.messages import (
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    SchedulerStats,
)
from learnvllm.architecture.platforms import prefill_tokens_per_decode
from learnvllm.architecture.request import BlockHasher, Request, RequestStatus
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.architecture.tracing import StepTracer
from learnvllm.kv_cache.config_builder import max_step_tokens
from learnvllm.kv_cache.hashing import make_block_hasher
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.kv_cache.manager import KVCacheBlocks, KVCacheManager
from learnvllm.scheduling.admission import check_admissible, check_queue_limits
from learnvllm.scheduling.interface import SchedulerInterface
from learnvllm.scheduling.invariants import check_invariants
from learnvllm.scheduling.output_maker import OutputMaker
from learnvllm.scheduling.request_queue import create_request_queue
from learnvllm.scheduling.scheduler import MIN_PREFILL_CHUNK
from learnvllm.scheduling.step_plan import StepPlan
from learnvllm.scheduling.step_recorder import StepRecorder
from learnvllm.scheduling.utils import check_stop


class Scheduler(SchedulerInterface):
    """Decides every step of one engine. Not thread-safe: the engine core's loop owns it.

    Args:
        config: the engine's configuration.
        kv_cache_config: the pool and its groups.
        tracer: receives a StepEvent per executed step; None costs nothing.
    """

    def __init__(
        self, config: EngineConfig, kv_cache_config: KVCacheConfig, tracer: StepTracer | None = None
    ) -> None:
        self.config = config
        self.scheduler_config = config.scheduler_config
        self.prefill_tokens_per_decode = prefill_tokens_per_decode(config)
        self.log_stats = config.observability_config.log_stats
        cache = config.cache_config
        step_tokens = max_step_tokens(config)
        self.kv_cache_manager = KVCacheManager(
            kv_cache_config,
            enable_caching=cache.enable_prefix_caching,
            watermark=cache.watermark,
            max_step_tokens=step_tokens,
            eviction=cache.prefix_cache_eviction,
        )
        self._block_hasher = (
            make_block_hasher(kv_cache_config.block_size, cache.prefix_caching_hash_seed)
            if cache.enable_prefix_caching
            else None
        )
        # A request alone in the pool must never run out of blocks, so the pool bounds its length too. The
        # last token of all is sampled but never computed: it needs no KV.
        self.num_tokens_that_fit = kv_cache_config.max_tokens_that_fit(step_tokens, config.max_model_len)
        self.max_model_len = min(config.max_model_len, self.num_tokens_that_fit + 1)

        self.requests: dict[str, Request] = {}
        """All unfinished requests."""
        self.waiting = create_request_queue(self.scheduler_config.policy)
        self.running: list[Request] = []
        """In order of admission, under "priority" by priority. Whoever is last is preempted first."""
        self.finished_req_ids: set[str] = set()
        """Finished since the last step and known to the workers."""
        self.progress_guard = True
        """Admit nobody who would have to give way before gaining a token. Off only to show why."""

        self._next_step_id = 0
        self._steps_in_flight: dict[int, list[Request]] = {}
        """Step id -> its batch. Requests, not ids: an id may be used again while a step is in flight."""
        self._output_maker = OutputMaker()
        self._stats = SchedulerStats()
        self._recorder = StepRecorder(tracer, self.kv_cache_manager.block_pool) if tracer else None

    # ------------------------------------------------------------------------------------------ requests

    @property
    def block_hasher(self) -> BlockHasher | None:
        return self._block_hasher

    def add_request(self, request: Request) -> None:
        check_admissible(request, self.requests, self.config.max_model_len, self.num_tokens_that_fit)
        check_queue_limits(self.waiting, self.scheduler_config)
        self.requests[request.request_id] = request
        self.waiting.add_request(request)
        self._record_event(request, EngineCoreEventType.QUEUED)

    def finish_requests(
        self, request_ids: str | Iterable[str], finished_status: RequestStatus
    ) -> list[tuple[str, int]]:
        if not finished_status.is_finished:
            raise ValueError(f"{finished_status!r} is not a final status")
        ids = [request_ids] if isinstance(request_ids, str) else request_ids
        ended: list[tuple[str, int]] = []
        left_running = False
        for request_id in ids:
            request = self.requests.get(request_id)
            if request is None:
                continue  # unknown, or finished meanwhile
            left_running |= self._end_request(request, finished_status)
            ended.append((request_id, request.client_index))
        if left_running:
            self._drop_finished_from_running()
        return ended

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def has_finished_requests(self) -> bool:
        return bool(self.finished_req_ids)

    def reset_prefix_cache(self) -> bool:
        return self.kv_cache_manager.reset_prefix_cache()

    # ---------------------------------------------------------------------------------------- scheduling

    def schedule(self) -> SchedulerOutput:
        started = time.monotonic() if self._recorder else 0.0
        plan = StepPlan(self.scheduler_config.max_num_batched_tokens, self._get_prefill_budget())
        self._schedule_running(plan)
        if not plan.preempted:  # who has just taken blocks from somebody does not hand them on
            self._schedule_waiting(plan)

        finished, self.finished_req_ids = self.finished_req_ids, set()
        output = plan.to_scheduler_output(self._next_step_id, finished)
        self._next_step_id += 1
        if plan.requests:
            self._steps_in_flight[output.step_id] = plan.requests
        if self._recorder:
            self._recorder.scheduled(output, plan.requests, started, self)
        self._update_after_schedule(plan)
        return output

    def _get_prefill_budget(self) -> int:
        """What prompts may take of this step: all of it, unless somebody decodes and would be held up."""
        budget = self.scheduler_config.max_num_batched_tokens
        if not self.prefill_tokens_per_decode:
            return budget
        num_decodes = sum(request.num_uncomputed_tokens == 1 for request in self.running)
        if not num_decodes:
            return budget
        share = max(num_decodes * self.prefill_tokens_per_decode, MIN_PREFILL_CHUNK)
        # By priority a prompt may be served before those who decode: theirs is not in its share.
        return max(min(share, budget - num_decodes), 1)

    def _schedule_running(self, plan: StepPlan) -> None:
        """Serve those who run, in order. Only who is further back gives way: a plan is never undone."""
        # TODO: For each running request, in order, while the budget lasts: its new tokens, blocks for them
        # (or stop, if it gave way itself), an entry in the plan, a promise for the rest of its prompt. Who
        # has nothing to compute is passed over.
        raise NotImplementedError("TODO: Scheduler._schedule_running")

    def _allocate_or_preempt(
        self, request: Request, num_new_tokens: int, plan: StepPlan
    ) -> KVCacheBlocks | None:
        # TODO: Blocks for the new tokens. While there are none the last in line gives way; None when that was
        # the request itself.
        raise NotImplementedError("TODO: Scheduler._allocate_or_preempt")

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        """Take all its blocks and queue it again. Tokens it has, or has in flight, are not lost."""
        # TODO: Blocks, status, counters (num_computed_tokens, num_preemptions, num_tokens_at_preemption: its
        # tokens and those in flight), the queue, plan.preempted, the statistics, and the event.
        raise NotImplementedError("TODO: Scheduler._preempt")

    def _schedule_waiting(self, plan: StepPlan) -> None:
        """Admit from the head of the queue until one does not fit. No overtaking: the big would starve."""
        max_num_seqs = self.scheduler_config.max_num_seqs
        while self.waiting and plan.token_budget > 0 and len(self.running) < max_num_seqs:
            if not self._admit(self.waiting.peek_request(), plan):
                return

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        if request.num_output_placeholders:
            return False  # preempted with a token in flight: computing it twice would put it in twice
        manager = self.kv_cache_manager
        hits, num_hit_tokens = manager.get_computed_blocks(request)
        num_new_tokens = self._get_num_new_tokens(request, num_hit_tokens, plan)
        if num_new_tokens == 0:
            return False
        new_blocks = manager.allocate_slots(
            request,
            num_new_tokens,
            hits,
            num_hit_tokens,
            num_reserved_blocks=self._get_num_reserved_blocks(request, plan),
            full_sequence_must_fit=self.progress_guard,
        )
        if new_blocks is None:
            return False
        self.waiting.pop_request()
        self._start_running(request, num_hit_tokens)
        plan.add_new(request, num_new_tokens, manager.get_block_ids(request.request_id))
        self._promise_rest_of_prompt(request, num_new_tokens, plan)
        return True

    def _start_running(self, request: Request, num_hit_tokens: int) -> None:
        request.num_computed_tokens = num_hit_tokens
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_hit_tokens
            if self._block_hasher is not None and request.sampling_params.prompt_logprobs is None:
                self._stats.prefix_cache_queries += request.num_tokens
                self._stats.prefix_cache_hits += num_hit_tokens
        request.status = RequestStatus.RUNNING
        if self.scheduler_config.policy == "priority":
            bisect.insort(self.running, request)
        else:
            self.running.append(request)
        self._record_event(request, EngineCoreEventType.SCHEDULED)

    def _get_num_new_tokens(self, request: Request, num_hit_tokens: int, plan: StepPlan) -> int:
        """What is known and not computed, as far as the budget goes. 0: not in this step."""
        num_new_tokens = request.num_uncomputed_tokens - num_hit_tokens
        config = self.scheduler_config
        if not config.enable_chunked_prefill:
            return num_new_tokens if num_new_tokens <= plan.token_budget else 0
        if num_new_tokens > 1:
            num_new_tokens = min(num_new_tokens, plan.prefill_budget)
        if config.long_prefill_token_threshold:
            num_new_tokens = min(num_new_tokens, config.long_prefill_token_threshold)
        return min(num_new_tokens, plan.token_budget)

    def _get_num_reserved_blocks(self, request: Request, plan: StepPlan) -> int:
        """Free blocks that admitting `request` must leave.

        None in an idle engine: there everything that fits may run, or it would wait for ever. Otherwise:
        - the watermark, so that those who run can grow;
        - blocks promised to prompts still being computed, which are as good as taken;
        - for who has been preempted, a block for each of those who run: they grow while it recomputes, and it
          would be preempted again before it gains a token.
        """
        if not self.running:
            return 0
        reserved = self.kv_cache_manager.watermark_blocks
        if self.progress_guard:
            reserved += plan.promised_blocks
            if request.num_preemptions:
                reserved += len(self.running) * self.kv_cache_manager.num_groups
        return reserved

    def _promise_rest_of_prompt(self, request: Request, num_new_tokens: int, plan: StepPlan) -> None:
        if request.num_computed_tokens + num_new_tokens < request.num_tokens:
            plan.promised_blocks += self.kv_cache_manager.get_num_blocks_outstanding(request)

    def _update_after_schedule(self, plan: StepPlan) -> None:
        """Steps are executed in order, so their tokens count as computed when the next is scheduled."""
        for request, num_tokens in zip(plan.requests, plan.num_scheduled_tokens.values()):
            request.num_computed_tokens += num_tokens

    # -------------------------------------------------------------------------------------------- update

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        started = time.monotonic() if self._recorder else 0.0
        batch = self._steps_in_flight.pop(scheduler_output.step_id, [])
        sampled = dict(zip(model_runner_output.req_ids, model_runner_output.sampled_token_ids))
        outputs: dict[int, list[EngineCoreOutput]] = {}
        left_running = False
        self._stats.num_scheduled_tokens += scheduler_output.total_num_scheduled_tokens
        for request in batch:
            if request.is_finished:
                continue  # ended while the step was in flight: its token is dropped
            token_ids, final_status = self._append_sampled_tokens(
                request, sampled.get(request.request_id) or []
            )
            if request.request_id in model_runner_output.num_nans_in_logits:
                token_ids, final_status = [], RequestStatus.FINISHED_ERROR  # its token means nothing
            output = self._output_maker.make(
                request, token_ids, final_status, scheduler_output, model_runner_output
            )
            if output is not None:
                outputs.setdefault(request.client_index, []).append(output)
            if final_status is not None:
                left_running |= self._end_request(request, final_status)
        if left_running:
            self._drop_finished_from_running()
        if self._recorder:
            self._recorder.executed(scheduler_output.step_id, model_runner_output, started)
        return self._pack_outputs(outputs)

    def _append_sampled_tokens(
        self, request: Request, token_ids: list[int]
    ) -> tuple[list[int], RequestStatus | None]:
        """Append tokens until one ends the request; return those that were kept, and how it ended, if so."""
        for count, token_id in enumerate(token_ids, start=1):
            request.append_output_token_ids([token_id])
            final_status = check_stop(request, self.max_model_len)
            if final_status is not None:
                return token_ids[:count], final_status
        return token_ids, None

    def _pack_outputs(self, outputs: dict[int, list[EngineCoreOutput]]) -> dict[int, EngineCoreOutputs]:
        """One message per client. Statistics travel with the first, to client 0 when there is none."""
        now = time.monotonic()
        packed = {client: EngineCoreOutputs(outputs=o, timestamp=now) for client, o in outputs.items()}
        if self.log_stats:
            first = next(iter(packed.values()), None)
            if first is None:
                first = packed[0] = EngineCoreOutputs(timestamp=now)
            first.scheduler_stats = self.make_stats()
        return packed

    # ------------------------------------------------------------------------------------- ends and state

    def _end_request(self, request: Request, status: RequestStatus) -> bool:
        """Free all it has. True when it ran: the caller then drops it from `running`, once for many."""
        was_running = request.status is RequestStatus.RUNNING
        if was_running:
            self.finished_req_ids.add(request.request_id)
        else:  # workers do not know it, or were told to forget it when it was preempted
            self.waiting.remove_request(request)
        request.status = status
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]
        self._output_maker.forget(request)
        if self._recorder:
            self._recorder.finished.append(request.request_id)
        return was_running

    def _drop_finished_from_running(self) -> None:
        """One pass, however many have finished."""
        self.running = [request for request in self.running if not request.is_finished]

    def shutdown(self) -> None:
        """Nothing is held outside this process' memory."""

    def make_stats(self) -> SchedulerStats:
        stats, self._stats = self._stats, SchedulerStats()
        stats.num_running_reqs = len(self.running)
        stats.num_waiting_reqs = len(self.waiting)
        stats.kv_cache_usage = self.kv_cache_manager.usage
        return stats

    def check_invariants(self) -> None:
        """Raise AssertionError unless queues, requests and block ownership agree. O(blocks): for tests."""
        check_invariants(self)

    def _record_event(self, request: Request, kind: EngineCoreEventType) -> None:
        if self.log_stats:
            request.record_event(kind)
