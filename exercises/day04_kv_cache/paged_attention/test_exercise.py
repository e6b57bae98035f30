"""Paged attention: where a block lies, and who else is in the batch, must not matter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.day04 import CONCEPTS

from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
reshape_and_cache = subject.reshape_and_cache
gather_kv = subject.gather_kv
paged_attention = subject.paged_attention

READ = f"Read {CONCEPTS}#paging."
DIM = 8


class Batch:
    """Requests with random K and V of every position, laid out in blocks anywhere; unused slots hold NaN.

    spans: per request (positions computed before, queries now).
    """

    def __init__(self, spans, block_size=4, heads=(2, 2), seed=0, order=None, window=None):
        torch.manual_seed(seed)
        self.spans, self.block_size, self.window = spans, block_size, window
        hq, hk = heads
        self.keys = [torch.randn(hk, before + n, DIM) for before, n in spans]
        self.values = [torch.randn(hk, before + n, DIM) for before, n in spans]
        self.queries = [torch.randn(n, hq, DIM) for _, n in spans]
        lengths = [-(-(before + n) // block_size) for before, n in spans]
        ids = list(range(1, sum(lengths) + 1))
        ids = ids if order is None else [ids[i] for i in order]
        width = max(lengths, default=0) + 1
        self.table = torch.full(
            (len(spans), width), len(ids) + 1, dtype=torch.int32
        )  # padding: a block of NaN
        self.k_cache = torch.full((len(ids) + 2, hk, block_size, DIM), float("nan"))
        self.v_cache = self.k_cache.clone()
        for r, (before, n) in enumerate(spans):
            row, ids = ids[: lengths[r]], ids[lengths[r] :]
            for i, block in enumerate(row):
                first = 0 if window is None else max(before - window + 1, 0)
                if (i + 1) * block_size <= first:
                    self.table[r, i] = 0  # given back: the null block
                    continue
                self.table[r, i] = block
                for offset in range(min(block_size, before + n - i * block_size)):
                    self.k_cache[block, :, offset] = self.keys[r][:, i * block_size + offset]
                    self.v_cache[block, :, offset] = self.values[r][:, i * block_size + offset]

    def run(self, scale=0.3, out=None):
        starts = [0]
        for _, n in self.spans:
            starts.append(starts[-1] + n)
        q = torch.cat(self.queries) if self.queries else torch.empty(0, 2, DIM)
        lens = torch.tensor([before + n for before, n in self.spans], dtype=torch.int32)
        start_loc = torch.tensor(starts, dtype=torch.int32)
        args = (q, self.k_cache, self.v_cache, self.table, lens, start_loc, scale)
        result = paged_attention(*args, sliding_window=self.window, out=out)
        assert result.shape == q.shape, f"One output per query: {tuple(q.shape)}, not {tuple(result.shape)}."
        return result

    def dense(self, scale=0.3):
        """The oracle: each query by itself, over keys and values that nobody has cut up."""
        rows = []
        for (before, n), q, k, v in zip(self.spans, self.queries, self.keys, self.values):
            for i in range(n):
                position = before + i
                first = 0 if self.window is None else max(position - self.window + 1, 0)
                group = q.shape[1] // k.shape[0]
                for h in range(q.shape[1]):
                    seen_k, seen_v = k[h // group, first : position + 1], v[h // group, first : position + 1]
                    rows.append(torch.softmax(seen_k @ q[i, h] * scale, dim=0) @ seen_v)
        return torch.stack(rows).view(-1, self.queries[0].shape[1], DIM) if rows else torch.empty(0, 2, DIM)

    def check(self, what):
        got, expected = self.run(), self.dense()
        if got.isnan().any():
            pytest.fail(
                f"{what}: NaN in the output of query rows "
                f"{sorted(set(got.isnan().nonzero()[:, 0].tolist()))[:8]}. Slots that hold no KV of this "
                "request were read: beyond seq_len, in padding of the table, or in the null block before "
                f"the window. A weight of 0 does not help, 0 * NaN is NaN. {READ}"
            )
        wrong = ((got - expected).abs().amax(dim=(1, 2)) > 1e-4).nonzero().flatten().tolist()
        assert not wrong, (
            f"{what}: queries of rows {wrong[:8]} differ from dense attention, the first by "
            f"{(got - expected)[wrong[0]].abs().max():.3f}. Requests (computed before, queries now): "
            f"{self.spans}, blocks of {self.block_size}, heads {self.queries[0].shape[1]} over "
            f"{self.keys[0].shape[0]}, window {self.window}. {READ}"
        )


@pytest.mark.points(2)
def test_keys_and_values_go_into_their_slots_and_nowhere_else():
    k_cache = torch.zeros(4, 2, 3, DIM)
    v_cache = torch.zeros_like(k_cache)
    k, v = torch.randn(5, 2, DIM), torch.randn(5, 2, DIM)
    reshape_and_cache(k, v, k_cache, v_cache, torch.tensor([3, 8, -1, 9, 0]))
    for name, cache, given_ in (("k", k_cache, k), ("v", v_cache, v)):
        for token, (block, offset) in {0: (1, 0), 1: (2, 2), 3: (3, 0), 4: (0, 0)}.items():
            assert torch.equal(cache[block, :, offset], given_[token]), (
                f"{name} of token {token}, slot {3 * block + offset}, belongs to block {block}, offset "
                f"{offset} (blocks of 3): slot = block * block_size + offset. {READ}"
            )
        written = cache.abs().sum(dim=(1, 3)).nonzero().tolist()
        assert written == [[0, 0], [1, 0], [2, 2], [3, 0]], (
            f"Only (block, offset) [[0, 0], [1, 0], [2, 2], [3, 0]] may be written, {name} was written to "
            f"{written}. Slot -1 means: do not store this token."
        )
    half = torch.zeros(2, 2, 3, DIM, dtype=torch.float16)
    reshape_and_cache(k[:1], v[:1], half, half.clone(), torch.tensor([4]))
    assert torch.equal(half[1, :, 1], k[0].half()), "The cache decides the dtype of what is stored."


@pytest.mark.points(2)
@given(st.integers(1, 5), st.integers(0, 12), st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_range_of_positions_is_gathered_in_order(block_size, start, count, random):
    stop = start + count
    blocks = list(range(-(-stop // block_size)))
    random.shuffle(blocks)
    cache = torch.full((len(blocks) + 1, 1, block_size, 1), -1.0)
    for position in range(stop):
        cache[blocks[position // block_size], 0, position % block_size, 0] = position
    row = torch.tensor([*blocks, len(blocks)], dtype=torch.int32)
    got = gather_kv(cache, row, start, stop)
    assert got.shape == (1, count, 1), f"[Hk, stop - start, D] is [1, {count}, 1], got {list(got.shape)}."
    assert got.flatten().tolist() == list(range(start, stop)), (
        f"Positions {start} to {stop - 1}, blocks of {block_size} in the table {blocks}: expected them in "
        f"order, got {[int(x) for x in got.flatten().tolist()]}. {READ}"
    )


@pytest.mark.points(1)
def test_a_decode_sees_everything_before_it_and_itself():
    Batch([(6, 1)]).check("One decode at position 6")
    Batch([(0, 1)]).check("The very first token")


@pytest.mark.points(2)
@pytest.mark.parametrize("span", [(0, 9), (5, 4), (4, 8)], ids=["prompt", "chunk", "chunk at a boundary"])
def test_a_prompt_or_a_chunk_of_it_is_causal(span):
    Batch([span]).check(f"{span[1]} queries after {span[0]} computed tokens")


@pytest.mark.points(2)
@pytest.mark.parametrize("heads", [(6, 2), (4, 1)], ids=str)
def test_query_heads_share_kv_heads_in_groups(heads):
    Batch([(3, 3)], heads=heads).check(f"{heads[0]} query heads over {heads[1]} KV heads")


@pytest.mark.points(2)
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_a_window_sees_itself_and_the_tokens_just_before(window):
    Batch([(9, 1)], window=window).check(f"Decode with a window of {window}")
    Batch([(6, 7)], window=window).check(f"Chunk with a window of {window}")


@pytest.mark.points(1)
def test_who_else_is_in_the_batch_does_not_matter():
    spans = [(0, 5), (9, 1), (4, 0), (3, 6), (0, 1)]
    Batch(spans, heads=(4, 2)).check("A prompt, two decodes, a chunk and a request without a query")


@pytest.mark.points(2)
@settings(max_examples=60)
@given(
    spans=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=4),
    block_size=st.sampled_from([1, 2, 3, 8]),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    window=st.sampled_from([None, None, 1, 3, 6]),
    data=st.data(),
)
def test_any_batch_in_any_blocks_equals_dense_attention(spans, block_size, heads, window, data):
    spans = [(before, n) for before, n in spans if before + n]
    if not any(n for _, n in spans):
        return
    total = sum(-(-(before + n) // block_size) for before, n in spans)
    order = data.draw(st.permutations(range(total)), label="blocks")
    Batch(spans, block_size, heads, order=order, window=window).check("A random batch")


@pytest.mark.points(1)
def test_the_same_computation_in_chunks_gives_the_same_rows():
    whole = Batch([(0, 10)], seed=3)
    rows = whole.run()
    for before, n in [(0, 3), (3, 4), (7, 3)]:
        part = Batch([(0, 10)], seed=3)
        part.spans, part.queries = [(before, n)], [whole.queries[0][before : before + n]]
        torch.testing.assert_close(
            part.run(),
            rows[before : before + n],
            msg=f"Queries {before} to {before + n - 1} of a prompt of 10 must not depend on the chunk.",
        )


@pytest.mark.points(1)
def test_out_is_used_and_dtype_is_kept():
    batch = Batch([(4, 3)])
    out = torch.zeros(3, 2, DIM)
    assert batch.run(out=out) is out, (
        "With out given, the result is written there and returned: no second tensor."
    )
    plain = batch.run()
    assert torch.equal(out, plain), (
        "What stands in `out` must be what is returned without it; they differ by up to "
        f"{(out - plain).abs().max():.3g}."
    )
    batch.queries = [batch.queries[0].half()]
    batch.k_cache, batch.v_cache = batch.k_cache.half(), batch.v_cache.half()
    assert batch.run().dtype == torch.float16, "The output has the dtype of q, though the sums are fp32."
    torch.testing.assert_close(
        batch.run(scale=0.0)[0, 0].float(), batch.values[0][0, :5].mean(0), atol=2e-3, rtol=0
    )
    batch.queries[0].fill_(100.0)
    batch.k_cache.fill_(100.0)
    got = batch.run(scale=1e-3)[0, 0].float()
    assert torch.allclose(got, batch.values[0][0, :5].mean(0), atol=2e-3), (
        f"q and k of 100 in fp16: {DIM} products of 10,000 add up to more than fp16 can hold (65,504), which "
        f"makes inf and then NaN. Sums are fp32, before the scale makes them small; got {got.tolist()}."
    )
