# %% [markdown]
# # Who is next
#
# Three policies on the same traffic: many short questions, a few long documents, arriving at random. You will see who waits for
# whom, why the best mean starves somebody, and how a single number a request settles it. 15 minutes, no model.

# %%
from statistics import mean

from learnvllm.scheduling.simulator import Arrival, Simulation, chat_and_documents, nearest_rank
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.show import COLORS, figure, table

traffic = chat_and_documents(seed=0)
is_document = {arrival.request_id: len(arrival.prompt) >= 800 for arrival in traffic}
chats = [arrival for arrival in traffic if not is_document[arrival.request_id]]
documents = [arrival for arrival in traffic if is_document[arrival.request_id]]
table(
    [
        [kind, len(group), sum(len(a.prompt) for a in group), f"{mean(len(a.prompt) for a in group):.0f}"]
        for kind, group in (("chats", chats), ("documents", documents))
    ],
    ["", "requests", "prompt tokens in all", "mean prompt"],
)

# %% [markdown]
# One request in ten brings most of the work. Served in order of arrival:


# %%
def run(policy, arrivals=traffic, **options):
    config = toy_config(max_num_seqs=16, max_num_batched_tokens=256, policy=policy, **options)
    return Simulation(config).run(arrivals)


def waits(sim, group=traffic):
    return [sim.times[arrival.request_id].waited for arrival in group]


fcfs = run("fcfs")
fig, ax = figure()
for color, group, label in ((COLORS[0], chats, "chats"), (COLORS[1], documents, "documents")):
    ax.plot([a.time for a in group], waits(fcfs, group), "o", markersize=4, color=color, label=label)
ax.set_xlabel("arrives at (s)")
ax.set_ylabel("waits (s)")
ax.legend()
fig

# %% [markdown]
# Chats wait exactly as long as documents: for whoever came before. Each hill is a document or two at the head of the queue.
#
# ## Short prompts first, with age
#
# A prompt that is k tokens shorter passes one that came up to k × 10 ms before it. The same traffic:

# %%
shortest = run("shortest")
fig, ax = figure()
for color, group, label in ((COLORS[0], chats, "chats"), (COLORS[1], documents, "documents")):
    ax.plot([a.time for a in group], waits(shortest, group), "o", markersize=4, color=color, label=label)
ax.set_xlabel("arrives at (s)")
ax.set_ylabel("waits (s)")
ax.legend()
fig


# %%
def summary(name, sims, groups):
    values = [w for sim, group in zip(sims, groups) for w in waits(sim, group)]
    return [
        name,
        f"{mean(values):.2f}",
        f"{nearest_rank(values, 50):.2f}",
        f"{nearest_rank(values, 99):.2f}",
        f"{max(values):.2f}",
    ]


traces = [chat_and_documents(seed=seed) for seed in range(4)]
table(
    [summary(policy, [run(policy, trace) for trace in traces], traces) for policy in ("fcfs", "shortest")],
    ["policy", "mean wait (s)", "median", "99 % wait at most", "longest"],
)

# %% [markdown]
# Sorted, the whole picture: the share of requests that waited at most so long.

# %%
fig, ax = figure()
for color, sim, label in ((COLORS[0], fcfs, "fcfs"), (COLORS[2], shortest, "shortest")):
    values = sorted(waits(sim))
    ax.step(
        values,
        [100 * (i + 1) / len(values) for i in range(len(values))],
        where="post",
        color=color,
        label=label,
    )
ax.set_xlabel("waited at most (s)")
ax.set_ylabel("% of requests")
ax.legend(loc="lower right")
fig

# %% [markdown]
# ## Why age
#
# For a minute ten short prompts a second arrive, more than four places can serve. One document came at the first second. How
# long it waits depends on how much a token of its prompt weighs against a second of waiting:

# %%
from learnvllm.scheduling import request_queue

stream = [Arrival(f"r{i}", i / 10, make_prompt(20, i), 16) for i in range(600)]
lonely = Arrival("document", 1.0, make_prompt(800, 1), 2)


def with_weight(seconds_per_token):
    normal = request_queue.SECONDS_PER_PROMPT_TOKEN
    request_queue.SECONDS_PER_PROMPT_TOKEN = seconds_per_token
    try:
        steady = Simulation(toy_config(max_num_seqs=4, max_num_batched_tokens=256, policy="shortest")).run(
            [lonely, *stream]
        )
        usual = [run("shortest", trace) for trace in traces]
    finally:
        request_queue.SECONDS_PER_PROMPT_TOKEN = normal
    values = [times.waited for sim in usual for times in sim.times.values()]
    return steady.times["document"].waited, mean(values), nearest_rank(values, 99), max(values)


rows = []
for weight, name in (
    (0.0, "0 (fcfs)"),
    (0.001, "1 ms"),
    (0.01, "10 ms"),
    (0.1, "100 ms"),
    (1e6, "all (strictly shortest first)"),
):
    lone, average, slow, longest = with_weight(weight)
    rows.append([name, f"{average:.2f}", f"{slow:.2f}", f"{longest:.2f}", f"{lone:.0f}"])
table(
    rows,
    [
        "a token weighs",
        "mean wait (s)",
        "99 % wait at most",
        "longest",
        "the document in the stream waits (s)",
    ],
)

# %% [markdown]
# From 10 ms on the mean hardly changes. The weight decides who pays, and how much at most: what 99 % wait at most gets less, the
# longest wait doubles, and from 100 ms on the document in the stream waits for the stream's end. 10 ms is ten times what a token
# costs in this simulation; on another machine another value may be right.
#
# Now write the queue: exercise *shortest_first*.
