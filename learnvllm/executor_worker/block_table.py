"""Which blocks hold each request's tokens: one table per KV cache group, one row per request.

A row only ever grows at its end, so a step sends the new block ids alone; token positions become cache slots
by looking blocks up for the whole step at once. Upstream namesake: vllm/v1/worker/gpu/block_table.py
(BlockTables).
"""

from __future__ import annotations

import numpy as np

from learnvllm.architecture.math_utils import cdiv
from learnvllm.architecture.step import BlockIds
from learnvllm.kv_cache.interface import KVCacheConfig


class BlockTables:
    """Block ids by row, for every group.

    Args:
        max_rows: rows to hold.
        max_tokens: longest request in tokens; a row is as wide as that many tokens need.
    """

    def __init__(self, kv_cache_config: KVCacheConfig, max_rows: int, max_tokens: int) -> None:
        self.block_sizes = [group.spec.block_size for group in kv_cache_config.groups]
        widths = [cdiv(max_tokens, size) for size in self.block_sizes]
        self.tables = [np.zeros((max_rows, width), dtype=np.int32) for width in widths]
        self.num_blocks = np.zeros((len(widths), max_rows), dtype=np.int32)

    def set_row(self, row: int, block_ids: BlockIds) -> None:
        """Start a row anew. What an earlier request left beyond its end is never read."""
        self.num_blocks[:, row] = 0
        self.append(row, block_ids)

    def append(self, row: int, block_ids: BlockIds) -> None:
        for group, new_ids in enumerate(block_ids):
            start = self.num_blocks[group, row]
            self.tables[group][row, start : start + len(new_ids)] = new_ids
            self.num_blocks[group, row] = start + len(new_ids)

    def gather(self, group: int, rows: np.ndarray, max_seq_len: int) -> np.ndarray:
        """The rows of a step, cut to what its longest request needs. rows: [R] -> [R, W] int32."""
        width = cdiv(max_seq_len, self.block_sizes[group])
        return self.tables[group][:, :width].take(rows, axis=0)

    def slot_mapping(self, group: int, token_rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Cache slots. token_rows, positions: [T], the row and the position of each token -> [T] int64."""
        table, size = self.tables[group], self.block_sizes[group]
        blocks = table.ravel().take(token_rows * table.shape[1] + positions // size)
        return blocks.astype(np.int64) * size + positions % size
