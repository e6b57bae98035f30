"""All rows of all requests in one flat tensor on the device, so that any change of state is one scatter.

The host writes changes down as (where, values) while it walks through a step's deltas; they travel with the
step's other numbers in one copy. Upstream: StagedWriteTensor in vllm/v1/worker/gpu/buffer_utils.py, one a
field.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from learnvllm.architecture.math_utils import cdiv
from learnvllm.architecture.step import BlockIds
from learnvllm.kv_cache.interface import KVCacheConfig

MAX_WORDS = 2**31 - 1
"""A place in the arena is an int32."""


def arena_words(block_sizes: list[int], max_rows: int, max_tokens: int) -> int:
    """32-bit words that the rows take: seed (2), temperature, prompt length, tokens, block ids."""
    return (max_rows + 1) * (4 + max_tokens + sum(cdiv(max_tokens, size) for size in block_sizes))


class DeviceRows:
    """Views of the arena by field, and the changes that have not been sent yet.

    Args:
        max_rows: rows to hold.
        max_tokens: longest request in tokens, the last sampled one included.
    """

    def __init__(
        self, kv_cache_config: KVCacheConfig, max_rows: int, max_tokens: int, device: torch.device
    ) -> None:
        self.max_rows, self.max_tokens = max_rows, max_tokens
        self.spare_row = max_rows
        """Nobody's: what requests that only fill up a batch read and write."""
        self.block_sizes = [group.spec.block_size for group in kv_cache_config.groups]
        self.widths = [cdiv(max_tokens, size) for size in self.block_sizes]
        words = arena_words(self.block_sizes, max_rows, max_tokens)
        self.arena = torch.zeros(words, dtype=torch.int32, device=device)
        self._end = 0
        rows = max_rows + 1
        self.seeds = self._field(rows, 2).view(torch.int64)[:, 0]
        self.temperature = self._field(rows).view(torch.float32)
        """0: the row is greedy."""
        self.num_prompt_tokens = self._field(rows)
        self.token_ids = self._field(rows, max_tokens)
        self.tables = [self._field(rows, width) for width in self.widths]
        self.num_blocks = np.zeros((len(self.widths), max_rows), dtype=np.int64)
        """How many block ids each row has, by group: the host counts them."""
        self._starts: list[int] = []
        self._values: list[np.ndarray] = []

    def _field(self, *shape: int) -> Tensor:
        start, self._end = self._end, self._end + math.prod(shape)
        return self.arena[start : self._end].view(shape)

    # ---------------------------------------------------------------------------------------------- changes

    def add_request(
        self, row: int, token_ids: list[int], num_prompt_tokens: int, seed: int, temperature: float
    ) -> None:
        """A request got `row`. What its last owner left beyond its own end is never read."""
        self._write(self.token_ids, row * self.max_tokens, np.array(token_ids, dtype=np.int32))
        self._write(self.num_prompt_tokens, row, np.array([num_prompt_tokens], dtype=np.int32))
        self._write(self.temperature, row, np.array([temperature], dtype=np.float32).view(np.int32))
        self._write(self.seeds, 2 * row, np.array([seed], dtype=np.int64).view(np.int32))
        self.num_blocks[:, row] = 0

    def append_blocks(self, row: int, block_ids: BlockIds) -> None:
        for group, new_ids in enumerate(block_ids):
            start = self.num_blocks[group, row]
            values = np.array(new_ids, dtype=np.int32)
            self._write(self.tables[group], row * self.widths[group] + int(start), values)
            self.num_blocks[group, row] = start + len(new_ids)

    def write_tokens(self, rows: np.ndarray, positions: np.ndarray, token_ids: np.ndarray) -> None:
        """One token each, which the host chose. rows, positions, token_ids: [n]."""
        for place, token in zip((rows * self.max_tokens + positions).tolist(), token_ids.tolist()):
            self._write(self.token_ids, place, np.array([token], dtype=np.int32))

    def _write(self, field: Tensor, place: int, values: np.ndarray) -> None:
        self._starts.append(field.storage_offset() * field.element_size() // 4 + place)
        self._values.append(values)

    def take_changes(self) -> tuple[np.ndarray, np.ndarray]:
        """(places, values), both [D] int32, of everything written since the last call. Each place once: rows
        are not given to two requests in one step."""
        if not self._starts:
            return _NOTHING, _NOTHING
        lengths = np.fromiter(map(len, self._values), np.int64, len(self._values))
        ends = np.cumsum(lengths)
        values = np.concatenate(self._values)
        places = np.arange(len(values)) + np.repeat(np.array(self._starts) - ends + lengths, lengths)
        self._starts, self._values = [], []
        return places.astype(np.int32), values

    def apply(self, places: Tensor, values: Tensor) -> None:
        """Put changes into the arena. places, values: [D] int32, on the device."""
        self.arena.index_copy_(0, places.long(), values)


_NOTHING = np.zeros(0, dtype=np.int32)
