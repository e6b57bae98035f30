# %% [markdown]
# # Blocks and names
#
# You hand out the blocks of a small pool to a few requests by hand: no model, no scheduler, only the cache.
# You will see which blocks two requests share, what a freed block still knows, and which content is evicted
# first. 15 minutes.

# %%
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.kv_cache.hashing import cache_salt_key, hash_block_tokens, make_block_hasher, none_hash
from learnvllm.study.prefix_traces import BLOCK_SIZE, make_manager
from learnvllm.study.show import COLORS, INK, figure, table

manager = make_manager(num_blocks=11)
pool = manager.block_pool
hasher = make_block_hasher(BLOCK_SIZE)
table(
    [
        ["tokens in a block", manager.block_size],
        ["blocks", pool.num_blocks],
        ["blocks that can hold KV (block 0 is the null block)", pool.num_usable_blocks],
        ["free", pool.get_num_free_blocks()],
    ],
    ["the pool", ""],
)

# %% [markdown]
# ## A request comes
#
# Admission is two calls: what is already there, and room for the rest. `history` keeps a picture of the pool
# after every call; `show` prints the pool as it is now.

# %%
history = []
requests = {}


def record(what):
    """Remember the state of every block: 0 free without a name, 1 free with one, 2 held, 3 shared."""
    states = []
    for block in pool.blocks[1:]:
        free = 1 if block.block_hash else 0
        states.append(free if block.ref_count == 0 else min(block.ref_count, 2) + 1)
    history.append((what, states))


def admit(name, tokens):
    request = requests[name] = Request(name, list(tokens), SamplingParams(max_tokens=9), block_hasher=hasher)
    hits, num_hit = manager.get_computed_blocks(request)
    added = manager.allocate_slots(request, request.num_tokens - num_hit, hits, num_hit)
    if added is not None:
        request.num_computed_tokens = request.num_tokens
    record(f"admit {name}")
    return num_hit, added


def show():
    order = [block.block_id for block in pool.free_block_queue]
    return table(
        [
            {
                "block": block.block_id,
                "held by": block.ref_count,
                "name": block.block_hash.hex()[:8] if block.block_hash else "",
                "in the free queue": order.index(block.block_id) + 1 if block.block_id in order else "",
            }
            for block in pool.blocks[1:]
        ]
    )


record("start")
num_hit, added = admit("a", range(10))
print(f"a: {num_hit} tokens found, added {added.get_block_ids()[0]}, table {manager.get_block_ids('a')[0]}")
show()

# %% [markdown]
# Ten tokens take three blocks of four. Two are full and have a name; the third is not full, so nobody can
# find it. Blocks 4 to 10 wait in the queue, next out first.
#
# ## A second one begins alike
#
# Request *b* has the same first 9 tokens and goes on differently. How many tokens will it find?

# %%
num_hit, added = admit("b", [*range(9), 70, 71, 72])
print(f"b: {num_hit} tokens found, blocks added {added.get_block_ids()[0]}")
table([[name, str(manager.get_block_ids(name)[0])] for name in "ab"], ["request", "table"])

# %% [markdown]
# Eight: only whole blocks are shared. Blocks 1 and 2 stand in both tables, with a count of 2, and *b*'s own
# third block is full, so it has a name of its own: same position as *a*'s third, other content.
#
# ## What is in a name
#
# A name contains the one before it. So the same four tokens have another name after another beginning, and a
# salt in the first block changes every block after it.


# %%
def names(tokens, salt=None):
    request = Request("n", list(tokens), SamplingParams(max_tokens=1), cache_salt=salt, block_hasher=hasher)
    return [name.hex()[:8] for name in request.block_hashes]


by_hand = hash_block_tokens(none_hash(), range(4))
print(
    "block 0 by hand:",
    by_hand.hex()[:8],
    "· its extra key with a salt:",
    cache_salt_key(Request("s", [1], SamplingParams(max_tokens=1), cache_salt="tenant"), 0, 4),
)
table(
    [
        ["0 … 11", *names(range(12))],
        ["the first token is another", *names([99, *range(1, 12)])],
        ["the last token is another", *names([*range(11), 99])],
        ["salt 'tenant'", *names(range(12), "tenant")],
    ],
    ["tokens", "block 0", "block 1", "block 2"],
)

# %% [markdown]
# ## They leave, and stay
#
# Both end. Their blocks become free and keep their content: the free memory *is* the cache. Look at the
# queue: blocks without a name stand at its front, and of each request the end comes before the beginning.

# %%
for name in "ab":
    manager.free(requests[name])
    record(f"free {name}")
show()

# %% [markdown]
# ## Somebody needs the place
#
# *c* shares nothing and takes 8 of the 10 blocks. Which content survives?

# %%
admit("c", range(500, 531))
found = {
    "a again": Request("x", list(range(10)), SamplingParams(max_tokens=1), block_hasher=hasher),
    "b again": Request("y", [*range(9), 70, 71, 72, 73], SamplingParams(max_tokens=1), block_hasher=hasher),
}
table(
    [[name, manager.get_computed_blocks(request)[1], request.num_tokens] for name, request in found.items()],
    ["would find", "tokens", "of"],
)

# %% [markdown]
# Everything without a name went first, then *b*'s tail: the two blocks both had in common were freed last and
# are still there. Now the whole story in one picture, a column per call:

# %%
manager.free(requests["c"])
record("free c")
admit("a2", range(10))
colors = [INK + "22", COLORS[0], COLORS[1], COLORS[2]]
fig, ax = figure(7.0, 3.6)
ax.imshow(
    [list(row) for row in zip(*[states for _, states in history])],
    cmap=ListedColormap(colors),
    vmin=0,
    vmax=3,
    aspect="auto",
)
ax.set_xticks(range(len(history)), [what for what, _ in history], rotation=30, ha="right")
ax.set_yticks(range(10), range(1, 11))
ax.set_ylabel("block")
ax.grid(False)
labels = ["free, no name", "free, can be found", "held by one", "shared"]
_ = ax.legend([Patch(color=c) for c in colors], labels, loc="center left", bbox_to_anchor=(1.0, 0.5))

# %% [markdown]
# The last column: *a*'s prompt came back and took its two blocks out of the middle of the queue. Try it: give
# the pool 13 blocks, or let *b* come back before *c*, and predict the table before you run it.
