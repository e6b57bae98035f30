# %% [markdown]
# # When blocks run out
#
# Nobody knows how long an answer gets, so memory runs out in the middle of some. You will watch requests give way and come
# back, see what it costs, and what watermark, promises and the prefix cache do about it. Its tables are the tool for the
# exercise *thrashing*. 20 minutes, no model.

# %%
import random

from learnvllm.architecture.tracing import RecordingTracer
from learnvllm.scheduling.simulator import Arrival, Simulation
from learnvllm.scheduling.toy import make_prompt, predict, toy_config
from learnvllm.study.show import COLORS, figure, step_table, table


def simulate(arrivals, guard=True, **config):
    tracer = RecordingTracer()
    sim = Simulation(toy_config(block_size=4, **config), tracer=tracer)
    sim.scheduler.progress_guard = guard
    return sim.run(arrivals), list(tracer.events)


two = [Arrival("a", 0.0, make_prompt(8, 1), 10), Arrival("b", 0.0, make_prompt(8, 2), 10)]
sim, events = simulate(two, num_blocks=7, enable_prefix_caching=True)
step_table(events)

# %% [markdown]
# Six usable blocks of 4 tokens. In the step in which a needs its fourth block and none is free, b gives way: it was admitted
# last. It loses all of its blocks and none of its tokens, and waits at the head of the queue. When it is back, `cached` says how much
# of it was still there.
#
# The client sees a pause and nothing else:

# %%
table(
    [
        [
            name,
            " ".join(map(str, sim.tokens[name])),
            str(sim.tokens[name] == predict(make_prompt(8, seed), 10)),
            f"{sim.times[name].longest_pause * 1000:.0f}",
        ]
        for name, seed in (("a", 1), ("b", 2))
    ],
    ["request", "tokens", "as if alone", "longest pause (ms)"],
)

# %% [markdown]
# ## Forty requests
#
# More than fit, all at once, 100 blocks. The lines: free blocks, and requests that run. Each mark below is a request that gave way.


# %%
def crowd(seed=1):
    rng = random.Random(seed)
    return [Arrival(f"r{i}", 0.0, make_prompt(rng.randint(4, 60), i), rng.randint(8, 80)) for i in range(40)]


def plot(events, title):
    fig, ax = figure(height=2.8)
    at = [event.step for event in events]
    ax.plot(at, [event.free_blocks for event in events], color=COLORS[0], label="free blocks")
    ax.plot(at, [event.num_running for event in events], color=COLORS[2], label="running")
    gone = [event.step for event in events for _ in event.preempted]
    ax.plot(gone, [-4] * len(gone), "|", color=COLORS[1], markersize=9, label="gave way")
    ax.set_xlabel("step")
    ax.set_title(title)
    ax.legend(loc="upper left")
    return fig


options = {"num_blocks": 101, "max_num_batched_tokens": 64, "max_num_seqs": 64}
sim, events = simulate(crowd(), watermark=0.0, **options)
plot(events, f"watermark 0: {sim.num_preemptions} preemptions")

# %%
sim, events = simulate(crowd(), watermark=0.2, **options)
plot(events, f"watermark 0.2: {sim.num_preemptions} preemptions")

# %% [markdown]
# The watermark holds admissions back, not those who run. In the first plot the free line lies on the ground, and each growing
# request takes its block from somebody; in the second about 20 are free most of the time, and those who run grow into them. What
# it buys and what it costs:

# %%
rows = []
for watermark in (0.0, 0.01, 0.05, 0.1, 0.2, 0.3):
    sim, _ = simulate(crowd(), watermark=watermark, **options)
    rows.append([watermark, sim.num_preemptions, sim.num_computed_tokens, len(sim.steps), f"{sim.now:.1f}"])
table(rows, ["watermark", "preemptions", "tokens computed", "steps", "seconds (simulated)"])

# %% [markdown]
# And the prefix cache, which makes coming back cheap as long as nobody has needed the blocks:

# %%
rows = []
for caching in (False, True):
    sim, _ = simulate(crowd(), watermark=0.0, enable_prefix_caching=caching, **options)
    rows.append(["on" if caching else "off", sim.num_preemptions, sim.num_computed_tokens])
table(rows, ["prefix cache", "preemptions", "tokens computed"])

# %% [markdown]
# Fewer tokens are computed, but preemptions are not fewer (31, and 29 without): a block that is found again takes up as much room as
# one that is computed again. The cache saves work, not memory. And where memory is short others soon take the blocks of who
# gave way: of what would be computed a second time, only a third is saved.

# %% [markdown]
# ## In circles
#
# A request behind one that decodes, with a prompt that needs nearly the whole pool. `progress_guard` off means: admit as soon as
# the first chunk fits. Watch b.

# %%
behind = [Arrival("a", 0.0, make_prompt(8, 1), 36), Arrival("b", 0.0, make_prompt(40, 2), 3)]
sim, events = simulate(behind, guard=False, num_blocks=13, max_num_batched_tokens=17)
step_table(events[:14])

# %%
rows = []
for guard in (False, True):
    sim, _ = simulate(behind, guard=guard, num_blocks=13, max_num_batched_tokens=17)
    rows.append(["on" if guard else "off", sim.num_preemptions, sim.num_computed_tokens, len(sim.steps)])
table(rows, ["guard", "preemptions", "tokens computed", "steps"])

# %% [markdown]
# Nothing hangs and every answer is right, which is why nobody notices. The step count does not even change: the work was
# done in steps that ran anyway, and paid in time. The trace tells; so does the counter of preemptions.
#
# ## A promise
#
# Two documents that fit only one after the other, cut into chunks of 4 by the threshold, so that much of each step is left. In
# step 0 both might come in. What keeps b out is not what a holds but what a *will* need:

# %%
documents = [Arrival("a", 0.0, make_prompt(60, 1), 3), Arrival("b", 0.0, make_prompt(60, 2), 3)]
sim = Simulation(
    toy_config(num_blocks=21, block_size=4, max_num_batched_tokens=16, long_prefill_token_threshold=4)
)
for request in documents:
    sim.add(request)
scheduler, manager = sim.scheduler, sim.scheduler.kv_cache_manager
rows = []
sim.step()
while scheduler.running and scheduler.waiting:  # a runs and b waits
    (a,) = scheduler.running
    rows.append(
        [
            len(sim.steps) - 1,
            a.num_computed_tokens,
            manager.block_pool.get_num_free_blocks(),
            manager.get_num_blocks_outstanding(a),
            15,
        ]
    )
    sim.step()
table(rows[::3], ["step", "a has computed", "free blocks", "promised to a", "b needs"])

# %% [markdown]
# As long as a's prompt is being computed, free less promised is 5, and b needs 15. A scheduler that looked at free blocks alone would let b in at once. In the
# exercise *thrashing* everything is computed twice; tables like these show you where the blocks went.
