"""How each row's request wants its tokens chosen, as arrays a step can index.

`flags` says what a row needs beyond an argmax, so that a batch pays only for what some row in it asks for.
Upstream namesake: vllm/v1/worker/gpu/sample/states.py (SamplingStates).
"""

from __future__ import annotations

import numpy as np

from learnvllm.architecture.step import NewRequestData
from learnvllm.executor_worker.sample.bad_words import BadWords
from learnvllm.executor_worker.sample.gumbel import request_seed
from learnvllm.executor_worker.sample.logit_bias import LogitBias
from learnvllm.executor_worker.sample.penalties import Penalties

RANDOM, PENALTIES, RULES, LOGPROBS = 1, 2, 4, 8


class SamplingStates:
    """Sampling parameters by row.

    Args:
        engine_seed: ModelConfig.seed; with the request's id it seeds requests that bring no seed.
    """

    def __init__(self, max_rows: int, vocab_size: int, engine_seed: int) -> None:
        self.engine_seed, self.vocab_size = engine_seed, vocab_size
        self.flags = np.zeros(max_rows, dtype=np.uint8)
        self.temperature = np.zeros(max_rows, dtype=np.float32)
        self.top_k = np.zeros(max_rows, dtype=np.int32)
        self.top_p = np.ones(max_rows, dtype=np.float32)
        self.min_p = np.zeros(max_rows, dtype=np.float32)
        self.seeds = np.zeros(max_rows, dtype=np.int64)
        self.num_logprobs = np.zeros(max_rows, dtype=np.int32)
        self.penalties = Penalties(max_rows, vocab_size)
        self.logit_bias = LogitBias()
        self.bad_words = BadWords()

    def add_request(self, row: int, request: NewRequestData) -> None:
        """Write everything a row holds, so that nothing of its last owner is left."""
        params = request.sampling_params
        self.temperature[row] = params.temperature
        self.top_k[row] = min(max(params.top_k, 0), self.vocab_size)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        own_seed = params.seed
        self.seeds[row] = request_seed(self.engine_seed, request.req_id) if own_seed is None else own_seed
        self.num_logprobs[row] = params.logprobs or 0
        has_rules = [self.logit_bias.add_request(row, request), self.bad_words.add_request(row, request)]
        self.flags[row] = (
            (0 if params.greedy else RANDOM)
            | (PENALTIES if self.penalties.add_request(row, request) else 0)
            | (RULES if any(has_rules) else 0)
            | (LOGPROBS if params.logprobs is not None else 0)
        )
