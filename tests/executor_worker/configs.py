"""Configurations of the fake model. Needs no torch, so a process that only starts workers stays light."""

from __future__ import annotations

from pathlib import Path

from learnvllm.architecture.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.scheduling.toy import toy_architecture

VOCAB = 97
WINDOW = 5


def make_arch(
    layer_types: tuple[str, ...] = ("full_attention", "full_attention"),
    vocab: int = VOCAB,
    positions: int = 256,
) -> ModelArchitecture:
    return toy_architecture(
        vocab_size=vocab,
        hidden_size=2,
        num_layers=len(layer_types),
        num_attention_heads=2,
        num_kv_heads=2,
        head_dim=4,
        max_position_embeddings=positions,
        layer_types=layer_types,
        sliding_window=WINDOW if "sliding_attention" in layer_types else None,
        eos_token_ids=(2,),
    )


def make_config(
    *,
    layer_types: tuple[str, ...] = ("full_attention", "full_attention"),
    block_size: int = 4,
    max_model_len: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    async_scheduling: bool | None = None,
    backend: str = "uni",
    seed: int = 0,
    vocab: int = VOCAB,
    device: str = "cpu",
    positions: int = 256,
) -> EngineConfig:
    return EngineConfig(
        model_config=ModelConfig(
            model="fake",
            path=Path("/nonexistent"),
            arch=make_arch(layer_types, vocab, positions),
            max_model_len=max_model_len,
            seed=seed,
        ),
        cache_config=CacheConfig(block_size=block_size),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            async_scheduling=async_scheduling,
        ),
        parallel_config=ParallelConfig(distributed_executor_backend=backend),
        device_config=DeviceConfig(device=device, num_threads=1),  # type: ignore[arg-type]
    )
