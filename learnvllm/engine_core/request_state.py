"""One request between its acceptance and its last output: what has come, what was handed on, what is due.

Upstream namesake: vllm/v1/engine/output_processor.py (RequestState).
"""

from __future__ import annotations

import time

from learnvllm.architecture.messages import EngineCoreRequest, FinishReason
from learnvllm.architecture.outputs import CompletionOutput, RequestMetrics, RequestOutput
from learnvllm.architecture.sampling_params import RequestOutputKind
from learnvllm.engine_core.detokenizer import make_detokenizer
from learnvllm.engine_core.logprobs import LogprobsProcessor
from learnvllm.engine_core.metrics.stats import RequestStateStats
from learnvllm.engine_core.output_collector import RequestOutputCollector
from learnvllm.engine_core.parallel_sampling import ParentRequest
from learnvllm.engine_core.tokenizer import Tokenizer


class RequestState:
    """One request (or one of a parent's children) between its acceptance and its last output."""

    def __init__(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        tokenizer: Tokenizer | None,
        *,
        parent: ParentRequest | None,
        index: int,
        queue: RequestOutputCollector | None,
        log_stats: bool,
    ) -> None:
        params = request.sampling_params
        self.request_id = request.request_id
        self.parent = parent
        self.external_id = request.request_id if parent is None else parent.request_id
        self.index = index
        self.queue = queue
        self.prompt = prompt
        self.prompt_token_ids = request.prompt_token_ids
        self.num_cached_tokens = 0
        self.detokenizer = make_detokenizer(tokenizer, request.prompt_token_ids, params)
        self.logprobs = LogprobsProcessor(tokenizer, params)
        self.stats = RequestStateStats(request.arrival_time) if log_stats else None
        self.arrival_time = request.arrival_time
        self._output_kind = params.output_kind
        self._stream_interval = params.stream_interval
        self._num_sent = 0
        self._prompt_logprobs_sent = False

    def make_output(
        self,
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
        error: Exception | None = None,
    ) -> RequestOutput | None:
        """What to hand on now; None when nothing is due (interval not full, final output only)."""
        finished = finish_reason is not None
        if not finished and not self._is_due():
            return None
        completions = [self._completion(finish_reason, stop_reason)]
        if self.parent is not None:
            if self.index == 0:
                self.parent.prompt_logprobs = self.logprobs.prompt_logprobs
                self.parent.num_cached_tokens = self.num_cached_tokens
            completions, finished = self.parent.add_output(self.request_id, completions[0])
            if not completions:
                return None
        return self._request_output(completions, finished, error)

    def _is_due(self) -> bool:
        if self._output_kind is RequestOutputKind.FINAL_ONLY:
            return False
        num_tokens = len(self.detokenizer.token_ids)
        # The first token is never held back; later ones until a whole interval has come together.
        return num_tokens > 0 and (
            self._num_sent == 0 or num_tokens - self._num_sent >= self._stream_interval
        )

    def _completion(
        self, finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput:
        delta = self._output_kind is RequestOutputKind.DELTA
        begin, self._num_sent = self._num_sent if delta else 0, len(self.detokenizer.token_ids)
        logprobs = self.logprobs.logprobs
        return CompletionOutput(
            index=self.index,
            text=self.detokenizer.next_text(finished=finish_reason is not None, delta=delta),
            token_ids=self.detokenizer.token_ids[begin:],  # a copy: the list goes on growing
            cumulative_logprob=self.logprobs.cumulative_logprob,
            logprobs=None if logprobs is None else logprobs[begin:],
            finish_reason=None if finish_reason is None else str(finish_reason),
            stop_reason=stop_reason,
        )

    def _request_output(
        self, completions: list[CompletionOutput], finished: bool, error: Exception | None
    ) -> RequestOutput:
        source = self.logprobs if self.parent is None else self.parent
        prompt_logprobs = source.prompt_logprobs
        if self._output_kind is RequestOutputKind.DELTA:  # deltas bring them once, with the first completion
            prompt_logprobs = None if self._prompt_logprobs_sent or self.index else prompt_logprobs
            self._prompt_logprobs_sent = True
        metrics = (
            RequestMetrics(self.arrival_time)
            if self.stats is None
            else self.stats.to_metrics(time.time(), finished)
        )
        return RequestOutput(
            request_id=self.external_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=completions,
            finished=finished,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens
            if self.parent is None
            else self.parent.num_cached_tokens,
            metrics=metrics,
            error=error,
        )
