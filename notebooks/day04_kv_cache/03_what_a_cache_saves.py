# %% [markdown]
# # What a cache saves
#
# Two traces of four hundred prompts, and a cache that is measured instead of believed: how much of the
# prompts it finds, how that depends on the size of pool and blocks, and which order of eviction suits which
# trace. 20 minutes; no model runs, because names alone decide a hit.

# %%
import itertools

from learnvllm.architecture.math_utils import cdiv
from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.kv_cache.hashing import make_block_hasher
from learnvllm.study.prefix_traces import assistants_and_documents, conversations, hit_rate, make_manager
from learnvllm.study.show import COLORS, INK, figure, table

TRACES = {"assistants and documents": assistants_and_documents(), "conversations": conversations()}
table(
    [
        {
            "trace": name,
            "prompts": len(prompts),
            "tokens": sum(map(len, prompts)),
            "distinct first blocks": len({tuple(prompt[:4]) for prompt in prompts}),
            "found by a cache without end": f"{hit_rate(prompts, make_manager(10_000)):.1%}",
        }
        for name, prompts in TRACES.items()
    ]
)

# %% [markdown]
# The last column is the ceiling: what any cache could find. In the first trace most tokens belong to
# documents that never come again, and only the system prompts of four assistants repeat. In the second every
# turn repeats the whole conversation before it.
#
# ## LRU, and the size of the pool

# %%
SIZES = (30, 40, 60, 80, 100, 120, 160, 240)
rates = {
    (name, eviction): [hit_rate(prompts, make_manager(size + 1, eviction)) for size in SIZES]
    for (name, prompts), eviction in itertools.product(TRACES.items(), ("lru", "segmented"))
}
fig, ax = figure()
for color, (name, prompts) in zip(COLORS, TRACES.items()):
    ax.plot(SIZES, [100 * rate for rate in rates[name, "lru"]], marker="o", label=name, color=color)
    ax.axhline(100 * hit_rate(prompts, make_manager(10_000)), color=color, linestyle=":", linewidth=1)
ax.set_xlabel("blocks of 4 tokens")
ax.set_ylabel("prompt tokens found, %")
ax.set_ylim(0)
_ = ax.legend()

# %% [markdown]
# Conversations are quickly served: six run at a time, and the one that comes next was there a moment ago. The
# assistants are not: between two uses of a system prompt so many documents go through that it has been
# evicted. More memory helps slowly. What would help is to know that a document is not worth keeping.
#
# ## Content that was found again
#
# Nobody knows that before; but a prefix that has been found once is likely to be found once more. The
# segmented queue keeps such blocks apart, half of the pool at most. The dashed lines are LRU.

# %%
fig, ax = figure()
for color, name in zip(COLORS, TRACES):
    ax.plot(SIZES, [100 * rate for rate in rates[name, "segmented"]], marker="o", label=name, color=color)
    ax.plot(SIZES, [100 * rate for rate in rates[name, "lru"]], linestyle="--", color=color, alpha=0.6)
ax.set_xlabel("blocks of 4 tokens")
ax.set_ylabel("prompt tokens found, %")
ax.set_ylim(0)
_ = ax.legend()

# %%
table(
    [
        {
            "trace": name,
            "blocks": size,
            "LRU": f"{rates[name, 'lru'][i]:.1%}",
            "segmented": f"{rates[name, 'segmented'][i]:.1%}",
            "factor": rates[name, "segmented"][i] / rates[name, "lru"][i],
        }
        for name in TRACES
        for i, size in enumerate(SIZES)
        if size in (40, 80, 160)
    ]
)

# %% [markdown]
# In the smaller pools it more than doubles the first; a pool that is large enough needs it less. It costs some
# of the second: in a conversation *everything* is found again, so what is protected is mostly talk that is over.
# The smaller the pool, the more that hurts.
#
# ## Where a system prompt stands in the queue
#
# The first 240 requests, a pool of 80 blocks. How many blocks of the first assistant's prompt are in the cache
# after each?

# %%
prompts = TRACES["assistants and documents"][:240]
hasher = make_block_hasher(4)
wanted = Request("w", list(range(32)), SamplingParams(max_tokens=1), block_hasher=hasher).block_hashes
fig, ax = figure(7.0, 2.6)
for eviction, color in (("lru", COLORS[0]), ("segmented", COLORS[1])):
    manager, present = make_manager(81, eviction), []
    for prompt in prompts:
        hit_rate([prompt], manager)
        present.append(sum(manager.block_pool.get_cached_block(name) is not None for name in wanted))
    ax.step(range(len(prompts)), present, where="post", label=eviction, color=color)
uses = [i for i, prompt in enumerate(prompts) if prompt[:32] == list(range(32))]
ax.plot(uses, [-0.6] * len(uses), linestyle="", marker="|", color=INK, label="asked for")
ax.set_xlabel("request")
ax.set_ylabel("blocks of 8")
_ = ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))

# %% [markdown]
# Under LRU the prompt falls out between two uses, from its end to its beginning. Segmented, it must be found
# once while it is still on probation; from then on it stays.
#
# ## The size of a block
#
# Larger blocks find less, since only whole blocks are shared, and waste more at the end of every request. The
# same memory (320 tokens) cut into blocks of different size:

# %%
talk = TRACES["conversations"]
table(
    [
        {
            "tokens a block": size,
            "found": f"{hit_rate(talk, make_manager(320 // size + 1, block_size=size)):.1%}",
            "slots unused": f"{sum(-len(p) % size for p in talk) / sum(map(len, talk)):.1%}",
            "entries in the longest table": cdiv(max(map(len, talk)), size),
        }
        for size in (1, 2, 4, 8, 16, 32)
    ]
)

# %% [markdown]
# Try it: write a trace of your own (an agent that calls a tool and comes back with the whole history, a batch
# job that asks one question about a thousand documents) and find out which order it wants.
