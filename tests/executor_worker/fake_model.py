"""A model whose next token depends on every token, position and block before it, and nothing else.

It writes each token id into k and its position into v, reads the whole history back through the block table,
and hashes it: a wrong slot, position, block or length changes the logits completely. `expected_logits` is the
same without any cache.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import torch
from torch import Tensor

from learnvllm.architecture.config import EngineConfig
from learnvllm.kv_cache.interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, KVCacheTensor
from learnvllm.model_layers.attention import StepContext
from learnvllm.model_layers.model import DecoderModel
from tests.executor_worker.configs import WINDOW


def make_kv_cache_config(config: EngineConfig, num_blocks: int = 64) -> KVCacheConfig:
    """One group per layer type; groups of equal size share tensors."""
    model = FakeModel(config)
    by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, spec in model.kv_cache_specs(config.cache_config.block_size).items():
        by_spec.setdefault(spec, []).append(name)
    groups = tuple(KVCacheGroupSpec(tuple(names), spec) for spec, names in by_spec.items())
    tensors = tuple(KVCacheTensor(shared) for shared in zip(*by_spec.values(), strict=True))
    return KVCacheConfig(num_blocks, config.cache_config.block_size, groups, tensors)


class FakeModel(DecoderModel):
    def __init__(self, config: EngineConfig) -> None:
        self.arch = config.model_config.arch
        self.block_size = config.cache_config.block_size
        self.forward_shapes: list[int] = []
        self.logit_rows: list[int] = []

    def weight_bytes(self) -> int:
        return 0

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: StepContext) -> Tensor:
        self.forward_shapes.append(len(input_ids))
        if (os.environ.get("FAKE_MODEL_DIES_AT") or "") in map(str, input_ids.tolist()):
            os._exit(7)
        hidden = torch.zeros(len(input_ids), 2)
        hashes = [hashlib.sha256() for _ in input_ids]
        for name, layer_type in zip(self.layer_names, self.arch.layer_types):
            meta = ctx.metadata[name]
            k_cache, v_cache = ctx.kv_caches[name]
            block_size = k_cache.shape[2]
            for slot, token, position in zip(
                meta.slot_mapping.tolist(), input_ids.tolist(), positions.tolist(), strict=True
            ):
                if slot >= 0:
                    block, offset = divmod(slot, block_size)
                    k_cache[block, :, offset] = token
                    v_cache[block, :, offset] = position
            starts = meta.query_start_loc.tolist()
            for r, seq_len in enumerate(meta.seq_lens.tolist()):
                chunk = range(starts[r], starts[r + 1])
                for t in chunk:
                    last = seq_len - (starts[r + 1] - t)
                    first = max(0, last - WINDOW + 1) if layer_type == "sliding_attention" else 0
                    for i in range(first, last + 1):
                        block = int(meta.block_table[r, i // block_size])
                        token = float(k_cache[block, 0, i % block_size, 0])
                        position = float(v_cache[block, 0, i % block_size, 0])
                        hashes[t].update(f"{token:.0f}@{position:.0f},".encode())
        for t, digest in enumerate(hashes):
            hidden[t] = torch.from_numpy(_hidden(digest))
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.logit_rows.append(len(hidden))
        logits = torch.empty(len(hidden), self.arch.vocab_size)
        for row, h in zip(logits, hidden.numpy()):
            row.copy_(torch.from_numpy(_logits(h, self.arch.vocab_size)))
        return logits


def _hidden(digest: hashlib._Hash) -> np.ndarray:
    raw = digest.digest()
    return np.array([int.from_bytes(raw[:3], "big"), int.from_bytes(raw[3:6], "big")], dtype=np.float32)


def _logits(hidden: np.ndarray, vocab: int) -> np.ndarray:
    rng = np.random.default_rng([int(hidden[0]), int(hidden[1])])
    return (3 * rng.standard_normal(vocab)).astype(np.float32)


def expected_logits(tokens: list[int], config: EngineConfig) -> np.ndarray:
    """The logits after `tokens`, computed without a cache."""
    arch = config.model_config.arch
    digest = hashlib.sha256()
    for layer_type in arch.layer_types:
        first = max(0, len(tokens) - WINDOW) if layer_type == "sliding_attention" else 0
        for i in range(first, len(tokens)):
            digest.update(f"{tokens[i]}@{i},".encode())
    return _logits(_hidden(digest), arch.vocab_size)


def greedy(prompt: list[int], count: int, config: EngineConfig) -> list[int]:
    """The oracle: plain greedy decoding, one request alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(expected_logits(tokens, config).argmax()))
    return tokens[len(prompt) :]


def load_fake_model(config: EngineConfig) -> DecoderModel:
    return FakeModel(config)
