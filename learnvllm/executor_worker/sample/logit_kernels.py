"""Penalties and log-probabilities as CPU kernels: one or a few passes over a row of logits each.

`torch_ref.penalize` and `logprob.compute_logprobs` say what is computed. Upstream has the like in Triton:
vllm/v1/worker/gpu/sample/penalties.py, logprob.py. Importing this module compiles or loads the kernels.
"""

from __future__ import annotations

import numpy as np

from learnvllm.executor_worker.sample.kernels import address
from learnvllm.model_layers.ops.cpu import exp
from learnvllm.model_layers.ops.jit import f32, i32, i64, kernel, my_share, threads_for


@kernel("q" * 9)
def _penalize(args):  # type: ignore[no-untyped-def]
    logits, indices, rows, count, vocab = args[0], i64(args[1]), i64(args[2]), args[3], args[4]
    repetition, frequency, presence = f32(args[6]), f32(args[7]), f32(args[8])
    begin, end = my_share(count * vocab)  # rows are cut, so that one row too keeps every thread busy
    for i in range(begin // vocab, -(-end // vocab)):
        x = f32(logits + indices[i] * vocab * 4)
        occurrences = i32(args[5] + rows[i] * vocab * 4)
        r, f, p = repetition[i], frequency[i], presence[i]
        inverse = np.float32(1.0) / r
        for j in range(max(0, begin - i * vocab), min(vocab, end - i * vocab)):
            seen = occurrences[j]
            output = seen & np.int32(0x3FFFFFFF)  # all but penalties.IN_PROMPT
            factor = (inverse if x[j] > np.float32(0.0) else r) if seen > 0 else np.float32(1.0)
            x[j] = x[j] * factor - f * np.float32(output) - (p if output > 0 else np.float32(0.0))


def penalize(
    logits: np.ndarray,
    indices: np.ndarray,
    rows: np.ndarray,
    occurrences: np.ndarray,
    repetition: np.ndarray,
    frequency: np.ndarray,
    presence: np.ndarray,
) -> None:
    """torch_ref.penalize in place.

    logits: [S, V] float32, of which the rows `indices` [n] int64 are changed; occurrences: [max_rows, V]
    int32 of penalties.Penalties, of which `rows` [n] int64 are read; penalties: [n] float32.
    """
    count, vocab = len(indices), logits.shape[1]
    _penalize(
        threads_for(count * vocab, 16384),
        address(logits, np.float32, logits.size),
        address(indices, np.int64, count),
        address(rows, np.int64, count),
        count,
        vocab,
        address(occurrences, np.int32, occurrences.shape[0] * vocab),
        address(repetition, np.float32, count),
        address(frequency, np.float32, count),
        address(presence, np.float32, count),
    )


# --------------------------------------------------------------------------------------------------- logprobs


@kernel("q" * 8)
def _logprobs(args):  # type: ignore[no-untyped-def]
    logits, count, vocab, num_top, chosen = args[0], args[1], args[2], args[3], i64(args[4])
    ids, logprobs, ranks = i32(args[5]), f32(args[6]), i32(args[7])
    begin, end = my_share(count)
    for i in range(begin, end):
        x = f32(logits + i * vocab * 4)
        column = i * (num_top + 1)  # 0 is the chosen token, then the best so far in order
        own = x[chosen[i]]
        ids[column], logprobs[column] = np.int32(chosen[i]), own
        for k in range(1, num_top + 1):
            ids[column + k], logprobs[column + k] = np.int32(0), np.float32(-np.inf)
        rank, highest = np.int32(1), x[0]
        for j in range(vocab):
            highest = max(highest, x[j])
            rank += np.int32(1) if x[j] > own else np.int32(0)
        for j in range(vocab if num_top > 0 else 0):
            if x[j] > logprobs[column + num_top]:  # seldom true: move worse ones down, put it in its place
                k = num_top
                while k > 1 and x[j] > logprobs[column + k - 1]:
                    ids[column + k], logprobs[column + k] = ids[column + k - 1], logprobs[column + k - 1]
                    k -= 1
                ids[column + k], logprobs[column + k] = np.int32(j), x[j]
        total = np.float64(0.0)
        for j in range(vocab):
            total += np.float64(exp(x[j] - highest))
        normalizer = highest + np.float32(np.log(total))
        for k in range(num_top + 1):
            logprobs[column + k] -= normalizer
        ranks[i] = rank


def logprobs(
    logits: np.ndarray, chosen: np.ndarray, num_top: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """logprob.compute_logprobs: (token_ids, logprobs, ranks). Equally likely tokens are listed by id.

    logits: [n, V] float32, finite; chosen: [n] int64; num_top <= V.
    """
    count, vocab = logits.shape
    ids = np.empty((count, num_top + 1), dtype=np.int32)
    values = np.empty((count, num_top + 1), dtype=np.float32)
    ranks = np.empty(count, dtype=np.int32)
    _logprobs(
        max(1, threads_for(count - 1, 1)),
        address(logits, np.float32, logits.size),
        count,
        vocab,
        num_top,
        address(chosen, np.int64, count),
        ids.ctypes.data,
        values.ctypes.data,
        ranks.ctypes.data,
    )
    return ids, values, ranks
