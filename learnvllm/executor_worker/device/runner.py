"""The device-resident runner: a step is sent, started and left to run; its tokens are fetched when wanted.

The host counts (rows, lengths, blocks) and never needs a token to plan the next step. What it must see before
it can choose (penalties, rules, log-probabilities) makes that one step wait; all others do not.
Upstream namesake: vllm/v1/worker/gpu/model_runner.py (GPUModelRunner).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.step import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput, SchedulerOutput
from learnvllm.executor_worker.device.cuda_graphs import (
    CudaGraphManager,
    GraphBackend,
    GraphKey,
    GraphSupport,
)
from learnvllm.executor_worker.device.host_copy import HostCopy
from learnvllm.executor_worker.device.inputs import StepInputs, StepNumbers
from learnvllm.executor_worker.device.rows import DeviceRows
from learnvllm.executor_worker.device.sampling import DeviceSampler
from learnvllm.executor_worker.input_batch import BatchShape, batch_shape
from learnvllm.executor_worker.model_runner import KVCaches, make_output
from learnvllm.executor_worker.pending import PendingOutput
from learnvllm.executor_worker.request_state import RequestState
from learnvllm.executor_worker.sample.prompt_logprob import PromptLogprobs
from learnvllm.executor_worker.sample.sampler import Sampler, SamplerOutput
from learnvllm.executor_worker.sample.states import LOGPROBS, PENALTIES, RULES, SamplingStates
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.model_layers.attention import StepContext
from learnvllm.model_layers.model import DecoderModel

NEEDS_HOST = PENALTIES | RULES | LOGPROBS


@dataclass
class Step:
    """A step that has been started and whose tokens the host has not seen."""

    shape: BatchShape
    rows: np.ndarray
    """[S]: the rows that sample."""
    owners: np.ndarray
    """[S]: who had them (RequestState numbers each arrival), so that a row's next owner is left alone."""
    positions: np.ndarray
    """[S]: where each token goes in its row."""
    chosen: HostCopy
    """Token ids and NaN counts, of which the first S count."""
    started: float
    output: ModelRunnerOutput | None = field(default=None)


class DeviceModelRunner:
    """Args as ModelRunner, and:
    use_triton: kernels for inputs and sampling; False: their torch twins.
    graphs: what records graphs of decodes; None: every step is launched kernel by kernel.
    attention_support: what the attention in use allows of them.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: DecoderModel,
        kv_cache_config: KVCacheConfig,
        kv_caches: KVCaches,
        device: torch.device,
        use_triton: bool = False,
        graphs: GraphBackend | None = None,
        attention_support: GraphSupport = GraphSupport.NEVER,
    ) -> None:
        self.model, self.device, self.kv_caches = model, device, kv_caches
        scheduler, max_tokens = config.scheduler_config, config.max_model_len + 1
        max_rows, vocab_size = scheduler.max_num_seqs, model.arch.vocab_size
        self.max_model_len = config.max_model_len
        self.states = RequestState(max_rows, max_tokens)
        self.owner_of = np.zeros(max_rows, dtype=np.int64)
        """A number for each row's present owner."""
        self._num_arrivals = 0
        self.rows = DeviceRows(kv_cache_config, max_rows, max_tokens, device)
        self.inputs = StepInputs(self.rows, max(scheduler.max_num_batched_tokens, max_rows), use_triton)
        self.sampler = DeviceSampler(self.inputs, vocab_size)
        self.sampling_states = SamplingStates(max_rows, vocab_size, config.model_config.seed)
        self.is_filtered = np.zeros(max_rows, dtype=bool)
        """Rows with top-k, top-p or min-p."""
        self.host_sampler = Sampler(self.sampling_states, self.states, use_kernels=False)
        self.prompt_logprobs = PromptLogprobs(self.states, use_kernels=False)
        self._group_layers = [group.layer_names for group in kv_cache_config.groups]
        self._steps: deque[Step] = deque()
        self._hidden = torch.zeros(
            self.inputs.max_reqs, model.arch.hidden_size, dtype=model.dtype, device=device
        )
        """Where a replayed step sampled, for who needs logits beyond the graph's own choice."""
        parts = {"attention": attention_support, "the sampler": GraphSupport.ALWAYS}
        parts["the model"] = GraphSupport.NEVER if model.asks_host else GraphSupport.ALWAYS
        self.graphs = CudaGraphManager(graphs, parts, max_rows, self.inputs.max_tokens, self._run_captured)

    # ------------------------------------------------------------------------------------------------ steps

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step and wait for it."""
        return self.start_step(scheduler_output).result()

    @torch.inference_mode()
    def start_step(self, scheduler_output: SchedulerOutput) -> PendingOutput:
        """Start one step behind those that run; the result waits for it. Without tokens no model runs."""
        self._update_states(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens == 0:
            return PendingOutput(lambda: True, lambda: EMPTY_MODEL_RUNNER_OUTPUT)
        started = time.perf_counter()
        shape = batch_shape(self.states, scheduler_output)
        rows = shape.rows[shape.sampling]
        flags = self.sampling_states.flags[rows]
        if (flags & NEEDS_HOST).any() or self.prompt_logprobs.asked_by(shape.rows):
            return self._step_with_host(shape, rows, started)
        self._launch(shape, rows)
        positions = self.states.num_tokens[rows]
        self.states.num_tokens[rows] += 1
        chosen = HostCopy(self.sampler.chosen, self.inputs.stream)
        step = Step(shape, rows, self.owner_of[rows], positions, chosen, started)
        self._steps.append(step)
        return PendingOutput(chosen.is_ready, lambda: self._finish(step))

    def _finish(self, last: Step) -> ModelRunnerOutput:
        """Take note of the tokens of all steps up to `last`, in order; the output of that one."""
        while last.output is None:
            step = self._steps.popleft()
            token_ids, num_nans = step.chosen.wait()[:, : len(step.rows)].astype(np.int64)
            alive = self.owner_of[step.rows] == step.owners
            self.states.token_ids[step.rows[alive], step.positions[alive]] = token_ids[alive]
            nan_counts = {i: int(num_nans[i]) for i in np.flatnonzero(num_nans).tolist()}
            seconds = time.perf_counter() - step.started
            step.output = make_output(step.shape, SamplerOutput(token_ids, {}, nan_counts), {}, seconds)
        return last.output

    def _step_with_host(self, shape: BatchShape, rows: np.ndarray, started: float) -> PendingOutput:
        """A step whose tokens the simple runner's sampler chooses: it must know every token before it."""
        if self._steps:
            self._finish(self._steps[-1])
        self._send(shape)
        hidden = self._forward(len(shape.rows), int(shape.query_start_loc[-1]), len(rows), _bounds(shape))
        logits = self.model.compute_logits(self._sampled_rows(hidden, len(rows))).float()
        sampled = self.host_sampler(logits, rows)
        prompt_logprobs = self.prompt_logprobs.compute(shape, hidden, self.model.compute_logits)
        self.rows.write_tokens(rows, self.states.num_tokens[rows], sampled.token_ids)
        self.states.append_sampled(rows, sampled.token_ids)
        output = make_output(shape, sampled, prompt_logprobs, time.perf_counter() - started)
        return PendingOutput(lambda: True, lambda: output)

    # ------------------------------------------------------------------------------------- on the device

    def _launch(self, shape: BatchShape, rows: np.ndarray) -> None:
        """Start the model and the choice of a token for the sampling rows, from a graph if one is for it."""
        num_reqs, num_tokens = len(shape.rows), int(shape.query_start_loc[-1])
        bounds, samples_all = _bounds(shape), len(rows) == num_reqs
        key = self.graphs.dispatch(num_reqs, num_tokens, bounds[0], samples_all)
        is_filtered = bool(self.is_filtered[rows].any())
        self._send(shape, key)
        if key is not None:
            self.graphs.replay(key)
            hidden = self._hidden[: len(rows)]
        else:
            hidden = self._sampled_rows(self._forward(num_reqs, num_tokens, len(rows), bounds), len(rows))
        if is_filtered:
            logits = self.model.compute_logits(hidden).float()
            self.sampler.sample_filtered(logits, self.sampling_states, rows)
        elif key is None and len(rows):
            self.sampler.sample(self.model.compute_logits(hidden))

    def _send(self, shape: BatchShape, key: GraphKey | None = None) -> None:
        """The step's numbers and changes. For a graph the batch is filled up with requests without an owner:
        in a decode each has a token, in a mixed batch the first has all that are missing."""
        rows, starts, sampling = shape.rows, shape.query_start_loc, shape.sampling
        computed = shape.seq_lens - shape.num_scheduled
        if key is not None and (missing := key.num_reqs - len(rows)):
            ends = starts[-1] + np.arange(1, missing + 1) if key.max_query_len == 1 else key.num_tokens
            sampling = np.append(sampling, np.full(key.num_reqs - len(sampling), len(rows)))
            rows = np.append(rows, np.full(missing, self.rows.spare_row))
            starts = np.append(starts, np.broadcast_to(ends, missing))
            computed = np.append(computed, np.zeros(missing))
        self.inputs.send(StepNumbers(rows, starts, computed, sampling))

    def _forward(self, num_reqs: int, num_tokens: int, num_sampling: int, bounds: tuple[int, int]) -> Tensor:
        """[T, H] hidden states of the step that was sent. bounds: the longest query and sequence."""
        self.inputs.prepare(num_reqs, num_tokens, num_sampling)
        groups = self.inputs.metadata(num_reqs, num_tokens, *bounds)
        by_layer = {name: meta for meta, names in zip(groups, self._group_layers) for name in names}
        ids, positions = self.inputs.input_ids[:num_tokens], self.inputs.positions[:num_tokens]
        return self.model.forward(ids, positions, StepContext(by_layer, self.kv_caches))

    def _sampled_rows(self, hidden: Tensor, count: int) -> Tensor:
        return hidden if len(hidden) == count else hidden[self.inputs.logits_indices[:count]]

    def _run_captured(self, key: GraphKey) -> None:
        """A step from fixed buffers to fixed buffers, every request sampled: what graphs hold."""
        bounds = (key.max_query_len, self.max_model_len)
        hidden = self._forward(key.num_reqs, key.num_tokens, key.num_reqs, bounds)
        hidden = self._sampled_rows(hidden, key.num_reqs)
        self._hidden[: key.num_reqs].copy_(hidden)
        self.sampler.sample(self.model.compute_logits(hidden))

    # ------------------------------------------------------------------------------------------------ state

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        """Apply the deltas to what the host counts, and note down what the device must be told."""
        for req_id in scheduler_output.finished_req_ids | scheduler_output.preempted_req_ids:
            self.states.remove(req_id)
        for request in scheduler_output.scheduled_new_reqs:
            row = self.states.add(request)
            self._num_arrivals += 1
            self.owner_of[row] = self._num_arrivals
            sampling, params = self.sampling_states, request.sampling_params
            sampling.add_request(row, request)
            self.prompt_logprobs.add_request(row, request)
            self.is_filtered[row] = not params.greedy and bool(
                sampling.top_k[row] > 0 or params.top_p < 1 or params.min_p > 0
            )
            temperature = 0.0 if params.greedy else params.temperature
            seed = int(sampling.seeds[row])
            self.rows.add_request(row, request.token_ids, request.num_prompt_tokens, seed, temperature)
            self.rows.append_blocks(row, request.block_ids)
        cached = scheduler_output.scheduled_cached_reqs
        if cached.req_ids:
            rows = [self.states.row_of[req_id] for req_id in cached.req_ids]
            self.states.num_computed_tokens[rows] = cached.num_computed_tokens
            for row, block_ids in zip(rows, cached.new_block_ids):
                if block_ids is not None:
                    self.rows.append_blocks(row, block_ids)

    # ---------------------------------------------------------------------------------------------- warm-up

    @torch.inference_mode()
    def dummy_run(self, num_tokens: int, num_reqs: int) -> None:
        """A step of made-up requests in the spare row: to measure memory, or to warm up. It stores nothing;
        what is read is whatever block 0 holds."""
        num_reqs = min(num_reqs, num_tokens)
        starts = np.linspace(0, num_tokens, num_reqs + 1).astype(np.int32)
        spare = np.full(num_reqs, self.rows.spare_row)
        self.inputs.send(StepNumbers(spare, starts, np.zeros(num_reqs), np.arange(num_reqs)))
        longest = int(np.diff(starts).max())
        hidden = self._forward(num_reqs, num_tokens, num_reqs, (longest, longest))
        self.sampler.sample(self.model.compute_logits(self._sampled_rows(hidden, num_reqs)))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile what steps too large for a graph need, then capture the graphs, over padding alone.

        Triton compiles apart for 1, for multiples of 16 and for other numbers, of tokens and of requests.
        """
        limit, most = self.inputs.max_tokens // 16 * 16, self.rows.max_rows
        for num_reqs in (1, 16, 17, most // 16 * 16) if self.inputs.use_triton else ():
            for num_tokens in (limit, limit - 1):
                if 0 < num_reqs <= min(most, num_tokens):
                    self.dummy_run(num_tokens, num_reqs)
        none = np.zeros(0, dtype=np.int64)
        nobody = BatchShape([], none, none, np.zeros(1, dtype=np.int32), none, none)
        self.graphs.capture(before_each=lambda key: self._send(nobody, key))


def _bounds(shape: BatchShape) -> tuple[int, int]:
    """The longest query and the longest sequence of a step."""
    return int(shape.num_scheduled.max()), int(shape.seq_lens.max())
