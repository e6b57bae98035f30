"""Drives a model by hand over a paged cache: the smallest thing that can play scheduler and runner.

driver = PagedDriver(model, block_size=8)
logits = driver.step({"a": [5, 6, 7], "b": [9]})   # the next tokens of each request, any number of each
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnvllm.model_layers.attention import AttentionMetadata, StepContext
from learnvllm.model_layers.model import DecoderModel


class PagedDriver:
    """Blocks are handed out in a scrambled order, so that a wrong block table cannot go unnoticed."""

    def __init__(self, model: DecoderModel, block_size: int, num_blocks: int = 512) -> None:
        self.model, self.block_size = model, block_size
        arch = model.arch
        shape = (num_blocks, arch.num_kv_heads, block_size, arch.head_dim)
        # NaN everywhere: reading a slot that was never written shows in the logits.
        self.kv_caches = {
            n: (torch.full(shape, torch.nan), torch.full(shape, torch.nan)) for n in model.layer_names
        }
        order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(1)) + 1
        self.free_blocks: list[int] = order.tolist()
        self.blocks: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    @torch.inference_mode()
    def step(self, chunks: dict[str, list[int]]) -> dict[str, Tensor]:
        """Compute these tokens of these requests in one batch -> each one's logits, [its tokens, vocab]."""
        ids, positions, slots, starts, lens = [], [], [], [0], []
        for req_id, tokens in chunks.items():
            blocks = self.blocks.setdefault(req_id, [])
            start = self.computed.get(req_id, 0)
            end = start + len(tokens)
            while len(blocks) * self.block_size < end:
                blocks.append(self.free_blocks.pop())
            ids += tokens
            positions += range(start, end)
            slots += [
                blocks[p // self.block_size] * self.block_size + p % self.block_size
                for p in range(start, end)
            ]
            starts.append(len(ids))
            lens.append(end)
            self.computed[req_id] = end
        width = max(len(self.blocks[r]) for r in chunks)
        table = [self.blocks[r] + [0] * (width - len(self.blocks[r])) for r in chunks]
        meta = AttentionMetadata(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(lens, dtype=torch.int32),
            block_table=torch.tensor(table, dtype=torch.int32),
            slot_mapping=torch.tensor(slots),
        )
        ctx = StepContext(dict.fromkeys(self.model.layer_names, meta), self.kv_caches)
        hidden = self.model.forward(torch.tensor(ids), torch.tensor(positions), ctx)
        logits = self.model.compute_logits(hidden)
        return {r: logits[starts[i] : starts[i + 1]] for i, r in enumerate(chunks)}


@torch.inference_mode()
def reference_logits(hf_model: Any, tokens: list[int]) -> Tensor:
    """transformers' logits of every position. -> [len(tokens), vocab]"""
    logits: Tensor = hf_model(torch.tensor([tokens])).logits[0].float()
    return logits
