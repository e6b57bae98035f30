"""The two ends of a model: token ids to vectors, and vectors to a score for every token of the vocabulary.

Many small models tie them: one table serves both ways. Upstream namesakes: VocabParallelEmbedding and ParallelLMHead
in vllm/model_executor/layers/vocab_parallel_embedding.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.linear import safe_mode
from learnvllm.model_layers.plain_linear import make_linear
from learnvllm.model_layers.weights import Weights


class Embedding:
    """[T] ids -> [T, hidden] fp32: a new tensor, which becomes the residual stream."""

    def __init__(
        self, arch: ModelArchitecture, weights: Weights, name: str = "model.embed_tokens.weight"
    ) -> None:
        table = weights.take(name, arch.vocab_size, arch.hidden_size)
        half = safe_mode(table, weights.linear_mode) == "fp16"
        # A copy of its own: a view would keep the checkpoint file mapped. bfloat16 stays as it is, at the same size.
        wanted = table.dtype if table.dtype == torch.bfloat16 else torch.float16 if half else torch.float32
        self.table = table.to(wanted, copy=True)
        weights.count(self.table.nbytes)

    def __call__(self, input_ids: Tensor) -> Tensor:
        return torch.nn.functional.embedding(input_ids, self.table).float()


class LMHead:
    """[N, hidden] -> [N, vocab_size] fp32 logits. Tied to the embedding where the architecture says so."""

    def __init__(self, arch: ModelArchitecture, weights: Weights, embedding: Embedding) -> None:
        if arch.tie_word_embeddings:
            weight = embedding.table.float()  # no copy where the table is held in fp32
        else:
            weight = weights.take("lm_head.weight", arch.vocab_size, arch.hidden_size).float()
        self.kernel = make_linear(weight, None, mode=safe_mode(weight, weights.linear_mode))
        weights.count(self.kernel.weight_bytes)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.kernel(hidden)
