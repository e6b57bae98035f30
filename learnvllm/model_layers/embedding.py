"""The two ends of a model: token ids to vectors, and vectors to a score for every token of the vocabulary.

Many small models tie them: one table of the checkpoint serves both ways. In memory it is held twice, once in
rows to look up and once packed for the product. Upstream namesakes: VocabParallelEmbedding and ParallelLMHead
in vllm/model_executor/layers/vocab_parallel_embedding.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.linear import packed
from learnvllm.model_layers.linear_kernels import check_fits_fp16
from learnvllm.model_layers.weights import Weights

TABLE = "model.embed_tokens.weight"


class Embedding:
    """[T] ids -> [T, hidden] in `weights.dtype`: a new tensor, which becomes the residual stream.

    Raises:
        ModelLoadError: half precision is wanted and cannot hold the table.
    """

    def __init__(self, arch: ModelArchitecture, weights: Weights) -> None:
        table = weights.take(TABLE, arch.vocab_size, arch.hidden_size)
        dtype = table.dtype  # 16 bits stay as they are: fp32 would hold the same numbers in twice the bytes
        if weights.linear_mode == "torch":
            dtype = weights.dtype
        elif table.element_size() > 2:
            dtype = torch.float16 if weights.linear_mode == "fp16" else torch.float32
        if dtype is torch.float16:
            try:
                check_fits_fp16(table)
            except ValueError as error:
                raise weights.error(TABLE, str(error)) from None
        self.table = table.to(dtype, copy=True)  # a copy, for a view would keep the checkpoint file mapped
        self.dtype = weights.dtype
        weights.count(self.table.nbytes)

    def __call__(self, input_ids: Tensor) -> Tensor:
        return F.embedding(input_ids, self.table).to(self.dtype)


class LMHead:
    """[N, hidden] -> [N, vocab_size] logits, from the embedding's table where the two are tied."""

    def __init__(self, arch: ModelArchitecture, weights: Weights) -> None:
        name = TABLE if arch.tie_word_embeddings else "lm_head.weight"
        weight = weights.take(name, arch.vocab_size, arch.hidden_size).to(weights.dtype)
        self.kernel = packed(weights, name, weight, None)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.kernel(hidden)
