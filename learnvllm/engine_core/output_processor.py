"""Tokens from the engine become text for the caller: the one loop over each step's outputs.

Detokenizing, stop strings, logprobs, stream intervals, `n` and statistics are all done in this pass. A stop
string is found here, not in the core: the request is then aborted there. Upstream namesake:
vllm/v1/engine/output_processor.py (OutputProcessor).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from learnvllm.architecture.errors import EngineDeadError, ValidationError
from learnvllm.architecture.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from learnvllm.architecture.outputs import RequestOutput
from learnvllm.engine_core.core_ids import CoreIds
from learnvllm.engine_core.metrics.stats import IterationStats
from learnvllm.engine_core.output_collector import RequestOutputCollector
from learnvllm.engine_core.parallel_sampling import ParentRequest, fan_out
from learnvllm.engine_core.protocol import from_remote_error
from learnvllm.engine_core.request_state import RequestState
from learnvllm.engine_core.tokenizer import Tokenizer


@dataclass
class ProcessedOutputs:
    """What one pass gave."""

    request_outputs: list[RequestOutput] = field(default_factory=list)
    """Of requests without a queue (LLMEngine); the others went into their queues."""
    reqs_to_abort: list[str] = field(default_factory=list)
    """The core's ids of those that ended here, mostly by a stop string: it does not know of that yet."""


class OutputProcessor:
    """Keeps a RequestState for every request of this front end.

    Args:
        tokenizer: None where callers want token ids only.
        log_stats: keep the moments behind the metrics.
    """

    def __init__(self, tokenizer: Tokenizer | None, log_stats: bool = False) -> None:
        self.tokenizer = tokenizer
        self.log_stats = log_stats
        self.request_states: dict[str, RequestState] = {}
        """By the ids the core knows them by."""
        self.parent_requests: dict[str, ParentRequest] = {}
        self._aborted: list[RequestState] = []
        """For the next IterationStats."""
        self._core_ids = CoreIds()

    def has_unfinished_requests(self) -> bool:
        return bool(self.request_states)

    def num_unfinished_requests(self) -> int:
        return len(self.request_states)

    def add_request(
        self, request: EngineCoreRequest, prompt: str | None, queue: RequestOutputCollector | None = None
    ) -> list[EngineCoreRequest]:
        """Start tracking a request; returns what the core is to get: one request for each completion.

        Args:
            queue: where its outputs go. None: `process_outputs` returns them.

        Raises:
            ValidationError: its id, or that of one of its completions, is in use. Nothing is tracked then.
        """
        children = fan_out(request)
        for request_id in (request.request_id, *(child.request_id for child, _, _ in children)):
            if self._core_ids.get(request_id) is not None or request_id in self.parent_requests:
                raise ValidationError(
                    f"request_id {request_id!r} is in use by a running request; choose another.",
                    parameter="request_id",
                    value=request_id,
                )
        return [self._track(child, prompt, parent, index, queue) for child, parent, index in children]

    def _track(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent: ParentRequest | None,
        index: int,
        queue: RequestOutputCollector | None,
    ) -> EngineCoreRequest:
        state = RequestState(
            request,
            prompt,
            self.tokenizer,
            parent=parent,
            index=index,
            queue=queue,
            log_stats=self.log_stats,
        )
        if parent is not None:
            self.parent_requests[parent.request_id] = parent
        core_id = self._core_ids.add(request.request_id)
        self.request_states[core_id] = state
        return msgspec.structs.replace(request, request_id=core_id)

    def process_outputs(
        self,
        outputs: list[EngineCoreOutput],
        engine_ts: float = 0.0,
        iteration_stats: IterationStats | None = None,
    ) -> ProcessedOutputs:
        """One pass over what a step of the engine produced. Outputs of requests aborted here are dropped."""
        processed = ProcessedOutputs()
        for output in outputs:
            state = self.request_states.get(output.request_id)
            if state is not None:
                self._process(state, output, engine_ts, iteration_stats, processed)
        self.count_aborted(iteration_stats)
        return processed

    def _process(
        self,
        state: RequestState,
        output: EngineCoreOutput,
        engine_ts: float,
        iteration_stats: IterationStats | None,
        processed: ProcessedOutputs,
    ) -> None:
        if iteration_stats is not None and state.stats is not None:
            iteration_stats.update_from_output(output, engine_ts, len(state.prompt_token_ids), state.stats)
        state.num_cached_tokens = max(state.num_cached_tokens, output.num_cached_tokens)
        finish_reason, stop_reason = output.finish_reason, output.stop_reason
        stop_string = self._update_text(state, output)
        if stop_string is not None:
            finish_reason, stop_reason = FinishReason.STOP, stop_string
            if not output.finished:
                processed.reqs_to_abort.append(output.request_id)
        error = None if output.error is None else from_remote_error(output.error)
        if error is not None and state.parent is not None:  # one child refused: the whole request is
            processed.reqs_to_abort.extend(self._drop_siblings(state))
        if finish_reason is not None:
            self._finish(state, finish_reason, iteration_stats, ended_here=not output.finished)
        self._emit(state, state.make_output(finish_reason, stop_reason, error), processed)

    def _update_text(self, state: RequestState, output: EngineCoreOutput) -> str | None:
        """Feed the new tokens; returns the stop string that ends the request, if one does."""
        known = len(state.detokenizer.token_ids)
        stop = state.detokenizer.update(output.new_token_ids, output.finish_reason is FinishReason.STOP)
        if stop is None and output.finished:
            stop = state.detokenizer.finish()
        state.logprobs.update(output.new_logprobs, len(state.detokenizer.token_ids) - known)
        state.logprobs.update_prompt(output.new_prompt_logprobs)
        return stop

    def _emit(self, state: RequestState, output: RequestOutput | None, processed: ProcessedOutputs) -> None:
        if output is None:
            return
        if state.queue is None:
            processed.request_outputs.append(output)
        else:
            state.queue.put(output if output.error is None else output.error)

    # ------------------------------------------------------------------------------------ ends of requests

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Forget requests, given by the ids callers know; returns the ids the core knows them by.

        Whoever waits for one gets a last output with finish_reason "abort".
        """
        aborted: list[str] = []
        for request_id in request_ids:
            parent = self.parent_requests.get(request_id)
            # Of a parent only who still runs: the id of one that has ended may be another request's by now.
            for child_id in [request_id] if parent is None else parent.unfinished_ids():
                core_id = self._core_ids.get(child_id)
                if core_id is None:
                    continue
                state = self.request_states[core_id]
                aborted.append(core_id)
                self._finish(state, FinishReason.ABORT, None, ended_here=True)
                self._aborted.append(state)
                self._emit(state, state.make_output(FinishReason.ABORT, None), ProcessedOutputs())
        return aborted

    def forget(self, request_id: str) -> list[str]:
        """Drop a request that could not be added, as if it had never come; returns ids the core may know."""
        parent = self.parent_requests.pop(request_id, None)
        ids = [request_id] if parent is None else parent.child_ids()
        return self._forget_states(ids)

    def fail_all(self, error: EngineDeadError) -> None:
        """The engine is gone: every waiting consumer gets `error`."""
        for state in self.request_states.values():
            if state.queue is not None:
                state.queue.put(error.again())
        self.request_states.clear()
        self.parent_requests.clear()
        self._core_ids.clear()

    def _finish(
        self,
        state: RequestState,
        reason: FinishReason,
        iteration_stats: IterationStats | None,
        *,
        ended_here: bool,
    ) -> None:
        self._drop(state.request_id, ended_here=ended_here)
        parent = state.parent
        if parent is not None and parent.unfinished <= {state.request_id}:
            self.parent_requests.pop(parent.request_id, None)
        if iteration_stats is not None and state.stats is not None:
            iteration_stats.finish_request(reason, len(state.prompt_token_ids), state.stats)

    def _drop_siblings(self, state: RequestState) -> list[str]:
        assert state.parent is not None
        siblings = state.parent.unfinished - {state.request_id}
        state.parent.unfinished = {state.request_id}
        return self._forget_states(siblings)

    def _forget_states(self, request_ids: Iterable[str]) -> list[str]:
        """Drop them without a word; returns the core's ids of those there were."""
        dropped = (self._drop(request_id, ended_here=True) for request_id in request_ids)
        return [core_id for core_id in dropped if core_id is not None]

    def _drop(self, request_id: str, *, ended_here: bool) -> str | None:
        """Returns the core's id of the request; None where there is no such request."""
        core_id = self._core_ids.get(request_id)
        if core_id is not None:
            self._core_ids.remove(request_id, ended_here=ended_here)
            del self.request_states[core_id]
        return core_id

    def count_aborted(self, iteration_stats: IterationStats | None) -> None:
        """Count the requests aborted since the last call."""
        aborted, self._aborted = self._aborted, []
        if iteration_stats is not None:
            for state in aborted:
                if state.stats is not None:
                    iteration_stats.finish_request(
                        FinishReason.ABORT, len(state.prompt_token_ids), state.stats
                    )
