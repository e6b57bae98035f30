# %% [markdown]
# # Attention over scattered blocks
#
# The tensors behind the block table. You write keys and values into slots, gather them back through a table
# whose blocks lie anywhere, and see that attention neither knows nor cares. Then a window, and what goes
# wrong when it reads what it left behind. 15 minutes, a few thousand numbers.

# %%
import torch

from learnvllm.kv_cache.interface import FullAttentionSpec, SlidingWindowSpec
from learnvllm.model_layers.ops.torch_ref import gather_kv, paged_attention, reshape_and_cache
from learnvllm.study.show import COLORS, figure, table

torch.manual_seed(0)
BLOCK, HEADS, KV_HEADS, DIM = 4, 4, 2, 8
TABLE = [6, 2, 5]  # positions 0-3 lie in block 6, 4-7 in block 2, 8-11 in block 5
LENGTH = 10

k, v = torch.randn(LENGTH, KV_HEADS, DIM), torch.randn(LENGTH, KV_HEADS, DIM)
slots = [TABLE[position // BLOCK] * BLOCK + position % BLOCK for position in range(LENGTH)]
table(
    [["position", *range(LENGTH)], ["block", *[s // BLOCK for s in slots]], ["slot", *slots]],
    ["", *[""] * LENGTH],
)

# %% [markdown]
# ## Written by slot, read by table
#
# Memory that nobody wrote is NaN here, so that a wrong read shows. `gather_kv` brings any range of positions
# back in order.

# %%
k_cache = torch.full((8, KV_HEADS, BLOCK, DIM), float("nan"))
v_cache = k_cache.clone()
reshape_and_cache(k, v, k_cache, v_cache, torch.tensor(slots))
row = torch.tensor(TABLE, dtype=torch.int32)
table(
    [
        [
            f"{start} to {stop - 1}",
            bool(torch.equal(gather_kv(k_cache, row, start, stop).transpose(0, 1), k[start:stop])),
        ]
        for start, stop in [(0, 10), (3, 5), (7, 10)]
    ],
    ["positions", "as they were written"],
)

# %% [markdown]
# ## The same attention, wherever the blocks lie
#
# Six prompt tokens were computed before; four more come now, a chunk. Compare with dense attention over the
# keys in order, then move every block somewhere else and compare again.


# %%
def attend(q, table_row, caches, window=None):
    n = q.shape[0]
    tables = torch.tensor([table_row], dtype=torch.int32)
    lens, starts = torch.tensor([LENGTH], dtype=torch.int32), torch.tensor([0, n], dtype=torch.int32)
    return paged_attention(q, *caches, tables, lens, starts, DIM**-0.5, sliding_window=window)


def dense(q, window=None):
    n = q.shape[0]
    position = torch.arange(LENGTH - n, LENGTH)[:, None]
    seen = torch.arange(LENGTH)[None] <= position
    if window:
        seen &= torch.arange(LENGTH)[None] > position - window
    group = HEADS // KV_HEADS
    keys, values = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
    scores = q.transpose(0, 1) @ keys.transpose(1, 2) * DIM**-0.5
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values).transpose(0, 1)


q = torch.randn(4, HEADS, DIM)
moved = [1, 7, 3]
moved_caches = [torch.full_like(k_cache, float("nan")) for _ in range(2)]
for old, new in zip(TABLE, moved):
    for cache, copy in zip((k_cache, v_cache), moved_caches):
        copy[new] = cache[old]
table(
    [
        [
            "dense attention",
            str(TABLE),
            f"{(attend(q, TABLE, (k_cache, v_cache)) - dense(q)).abs().max():.1e}",
        ],
        [
            "after moving all blocks",
            str(moved),
            f"{(attend(q, moved, moved_caches) - dense(q)).abs().max():.1e}",
        ],
    ],
    ["compared with", "table", "largest difference"],
)

# %% [markdown]
# ## Who sees whom
#
# Query *i* of *n* stands at position `seq_len - n + i`: the queries are the last of the sequence. The weights
# of the first head, with and without a window of 4:

# %%
fig, ax = figure(7.0, 2.6)
weights = []
for window in (None, 4):
    one_hot = torch.full_like(v_cache, float("nan"))
    eye = torch.zeros(LENGTH, KV_HEADS, DIM)
    rows = []
    for position in range(LENGTH):  # values that are 1 at one position read a column of weights
        eye.zero_()
        eye[position] = 1
        reshape_and_cache(k, eye, k_cache.clone(), one_hot, torch.tensor(slots))
        rows.append(attend(q, TABLE, (k_cache, one_hot), window)[:, 0, 0])
    weights.append(torch.stack(rows, dim=1))
joined = torch.cat([weights[0], torch.full((4, 1), float("nan")), weights[1]], dim=1)
image = ax.imshow(joined, cmap="Blues", vmin=0, aspect="auto")
ax.set_yticks(range(4), [f"query {i}" for i in range(6, 10)])
ax.set_xticks([*range(10), *range(11, 21)], [*range(10), *range(10)])
ax.set_xlabel("key position · full on the left, window of 4 on the right")
ax.grid(False)
_ = fig.colorbar(image, label="weight")

# %% [markdown]
# ## What the window left behind must not be read
#
# A window of 4 at position 9 reads 6 to 9. Block 6 (positions 0 to 3) has been given back, and the null block
# stands in its place. Its memory is NaN. Masking it is not enough, for 0 · NaN is NaN: it must not be
# gathered.

# %%
with_null = [0, *TABLE[1:]]
last = q[-1:]
right = attend(last, with_null, (k_cache, v_cache), window=4)
masked_only = torch.cat([torch.zeros(1, 6), torch.full((1, 4), 0.25)], dim=1) @ torch.cat(
    [torch.full((4, 1), float("nan")), torch.ones(6, 1)]
)
table(
    [
        ["reads 6 to 9 only", "no" if right.isfinite().all() else "yes"],
        ["reads all, with weight 0 before the window", "yes" if masked_only.isnan().any() else "no"],
    ],
    ["attention that", "NaN in the output?"],
)

# %% [markdown]
# ## What it costs to remember
#
# Bytes of KV that one request holds in the embedded model's shape (30 layers, 3 KV heads of 64, fp32), with
# full attention and with a window of 512, at most 512 tokens a step:

# %%
full = FullAttentionSpec(16, 3, 64, "float32")
sliding = SlidingWindowSpec(16, 3, 64, "float32", sliding_window=512)
lengths = range(64, 8193, 64)
fig, ax = figure()
for spec, label, color in ((full, "full attention", COLORS[0]), (sliding, "window of 512", COLORS[1])):
    ax.plot(
        lengths,
        [30 * spec.page_size_bytes * spec.max_blocks(n, 512) / 2**20 for n in lengths],
        label=label,
        color=color,
    )
ax.set_xlabel("tokens of the request")
ax.set_ylabel("MiB of KV")
_ = ax.legend()
