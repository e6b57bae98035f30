"""Turns a SchedulerOutput into tokens: apply its deltas to the rows, gather inputs, run the model, sample.

State persists between steps and steps send only what changed; the sampled ids go straight into the rows,
where the next step finds them. Upstream namesake: vllm/v1/worker/gpu/model_runner.py (GPUModelRunner).
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.messages import LogprobsLists
from learnvllm.architecture.step import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput, SchedulerOutput
from learnvllm.executor_worker.block_table import BlockTables
from learnvllm.executor_worker.input_batch import (
    BatchShape,
    InputBatch,
    attention_metadata,
    build_input_batch,
)
from learnvllm.executor_worker.model_state import DefaultModelState, ModelState
from learnvllm.executor_worker.request_state import RequestState
from learnvllm.executor_worker.sample.prompt_logprob import PromptLogprobs
from learnvllm.executor_worker.sample.sampler import Sampler, SamplerOutput
from learnvllm.executor_worker.sample.states import SamplingStates
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.model_layers import ops
from learnvllm.model_layers.attention import AttentionMetadata, StepContext
from learnvllm.model_layers.model import DecoderModel

KVCaches = dict[str, tuple[Tensor, Tensor]]


class ModelRunner:
    """Holds the rows of all running requests and runs steps over them, one at a time and in order.

    Args:
        kv_caches: k and v of each layer, [num_blocks, num_kv_heads, block_size, head_dim].
        model_state: what this model keeps besides; None: nothing.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: DecoderModel,
        kv_cache_config: KVCacheConfig,
        kv_caches: KVCaches,
        device: torch.device,
        model_state: ModelState | None = None,
    ) -> None:
        self.model, self.device, self.kv_caches = model, device, kv_caches
        max_rows = config.scheduler_config.max_num_seqs
        max_tokens = config.max_model_len + 1  # a step in flight may sample one beyond a request's last
        self.states = RequestState(max_rows, max_tokens)
        self.block_tables = BlockTables(kv_cache_config, max_rows, max_tokens)
        self.model_state = model_state or DefaultModelState(device)
        use_kernels = device.type == "cpu" and ops.uses_kernels()
        self.sampling_states = SamplingStates(max_rows, model.arch.vocab_size, config.model_config.seed)
        self.sampler = Sampler(self.sampling_states, self.states, use_kernels)
        self.prompt_logprobs = PromptLogprobs(self.states, use_kernels)
        self._group_layers = [group.layer_names for group in kv_cache_config.groups]

    # ------------------------------------------------------------------------------------------------ steps

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step. A step without tokens (only ids to forget) runs no model."""
        self._update_states(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens == 0:
            return EMPTY_MODEL_RUNNER_OUTPUT
        batch = build_input_batch(self.states, scheduler_output)
        metadata = attention_metadata(batch, self.block_tables, self.device)
        start = time.perf_counter()
        hidden = self._forward(batch, metadata)
        logits = self._compute_logits(batch, hidden)
        forward_seconds = time.perf_counter() - start
        sampled = self.sampler(logits, batch.rows[batch.sampling])
        prompt_logprobs = self.prompt_logprobs.compute(batch, hidden, self.model.compute_logits)
        self.states.append_sampled(batch.rows[batch.sampling], sampled.token_ids)
        return make_output(batch, sampled, prompt_logprobs, forward_seconds)

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        """Apply the deltas. Rows are freed first: a request may end, or be preempted, and come anew in one
        step."""
        for req_id in scheduler_output.finished_req_ids | scheduler_output.preempted_req_ids:
            self._remove_request(req_id)
        for request in scheduler_output.scheduled_new_reqs:
            row = self.states.add(request)
            self.block_tables.set_row(row, request.block_ids)
            self.sampling_states.add_request(row, request)
            self.prompt_logprobs.add_request(row, request)
            self.model_state.add_request(row, request)
        cached = scheduler_output.scheduled_cached_reqs
        for req_id, block_ids, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens
        ):
            row = self.states.row_of[req_id]
            self.states.num_computed_tokens[row] = computed
            if block_ids is not None:
                self.block_tables.append(row, block_ids)

    def _remove_request(self, req_id: str) -> None:
        row = self.states.remove(req_id)
        if row is not None:
            self.model_state.remove_request(row)

    def _forward(self, batch: InputBatch, metadata: list[AttentionMetadata]) -> Tensor:
        """[T, H] hidden states of every token of the step."""
        by_layer = {name: group for group, names in zip(metadata, self._group_layers) for name in names}
        inputs = self.model_state.prepare_inputs(batch)
        return self.model.forward(inputs.input_ids, inputs.positions, StepContext(by_layer, self.kv_caches))

    def _compute_logits(self, batch: InputBatch, hidden: Tensor) -> Tensor:
        """[S, V] float32: logits where a token is to be sampled, and nowhere else."""
        indices = batch.logits_indices
        if len(indices) == 0:
            return hidden.new_empty((0, self.model.arch.vocab_size))
        if len(indices) < len(hidden):
            hidden = hidden[torch.from_numpy(indices).to(self.device)]
        return self.model.compute_logits(hidden).float()

    # ---------------------------------------------------------------------------------------------- warm-up

    def warm_up(self) -> None:
        """Load what a dummy step does not reach."""
        self.sampler.warm_up()

    @torch.inference_mode()
    def dummy_run(self, num_tokens: int, num_reqs: int) -> None:
        """A step of made-up requests that reads and writes no request's state: to measure memory, or to warm
        up.

        Tokens are split evenly over the requests; nothing is written to the cache (slot -1), and what is read
        is whatever block 0 holds.
        """
        num_reqs = min(num_reqs, num_tokens)
        lengths = np.full(num_reqs, num_tokens // num_reqs)
        lengths[: num_tokens % num_reqs] += 1
        batch = dummy_batch(lengths)
        metadata = attention_metadata(batch, self.block_tables, self.device)
        for group in metadata:
            group.slot_mapping.fill_(-1)
            group.block_table.zero_()
        self._compute_logits(batch, self._forward(batch, metadata))


def make_output(
    batch: BatchShape,
    sampled: SamplerOutput,
    prompt_logprobs: dict[str, LogprobsLists],
    forward_seconds: float,
) -> ModelRunnerOutput:
    """What was sampled for the batch's sampling requests, as the scheduler wants it."""
    indices = batch.sampling.tolist()
    if len(indices) == len(batch.req_ids):
        token_ids = sampled.token_ids[:, None].tolist()
    else:
        token_ids = [[] for _ in batch.req_ids]
        for index, token in zip(indices, sampled.token_ids.tolist()):
            token_ids[index] = [token]
    return ModelRunnerOutput(
        req_ids=batch.req_ids,
        sampled_token_ids=token_ids,
        logprobs={batch.req_ids[indices[i]]: row for i, row in sampled.logprobs.items()},
        prompt_logprobs=prompt_logprobs,
        forward_seconds=forward_seconds,
        num_nans_in_logits={batch.req_ids[indices[i]]: n for i, n in sampled.nan_counts.items()},
    )


def dummy_batch(lengths: np.ndarray) -> InputBatch:
    """A batch of fresh requests of these lengths. lengths: [R] int64."""
    query_start_loc = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start_loc[1:])
    total = int(query_start_loc[-1])
    return InputBatch(
        req_ids=[f"dummy-{i}" for i in range(len(lengths))],
        rows=np.zeros(len(lengths), dtype=np.int64),
        num_scheduled=lengths,
        query_start_loc=query_start_loc,
        seq_lens=lengths.astype(np.int32),
        token_rows=np.zeros(total, dtype=np.int64),
        input_ids=np.zeros(total, dtype=np.int64),
        positions=np.arange(total) - np.repeat(query_start_loc[:-1], lengths),
        sampling=np.arange(len(lengths)),
    )
