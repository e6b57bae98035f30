"""Sampling without a model: requests with given tokens in rows, logits straight into the sampler."""

from __future__ import annotations

import numpy as np
import torch

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.step import NewRequestData
from learnvllm.executor_worker.request_state import RequestState
from learnvllm.executor_worker.sample.sampler import Sampler, SamplerOutput
from learnvllm.executor_worker.sample.states import SamplingStates

GREEDY = SamplingParams(temperature=0.0)


class Bench:
    """A sampler with rows; `sample` draws for some of them."""

    def __init__(
        self, vocab: int, use_kernels: bool = True, max_rows: int = 64, engine_seed: int = 0
    ) -> None:
        self.requests = RequestState(max_rows, 128)
        self.states = SamplingStates(max_rows, vocab, engine_seed)
        self.sampler = Sampler(self.states, self.requests, use_kernels)

    def add(
        self,
        params: SamplingParams,
        prompt: list[int] | None = None,
        output: list[int] | None = None,
        req_id: str | None = None,
        eos: tuple[int, ...] = (2,),
    ) -> int:
        prompt, output = [0] if prompt is None else prompt, output or []
        request = NewRequestData(
            req_id or f"r{len(self.requests.row_of)}",
            prompt + output,
            len(prompt),
            params.verify(),
            eos,
            ([],),
            0,
        )
        row = self.requests.add(request)
        self.states.add_request(row, request)
        return row

    def sample(self, logits: np.ndarray | list[list[float]], rows: list[int] | None = None) -> SamplerOutput:
        """One step: sampled tokens are appended to the rows, as the runner does."""
        array = np.array(logits, dtype=np.float32)
        chosen = np.arange(len(array)) if rows is None else np.array(rows)
        output = self.sampler(torch.from_numpy(array), chosen)
        self.requests.append_sampled(chosen, output.token_ids)
        return output

    def adjusted(self, logits: np.ndarray | list[float], row: int) -> np.ndarray:
        """The logits a row's token is chosen from, before temperature."""
        tensor = torch.from_numpy(np.array([logits], dtype=np.float32))
        rows = np.array([row])
        self.sampler._adjust(tensor, rows, self.states.flags[rows])
        return tensor[0].numpy()
