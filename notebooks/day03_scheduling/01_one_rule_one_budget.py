# %% [markdown]
# # One rule, one budget
#
# You run the scheduler alone: no model, no process, a toy in place of the device. You will see what each step computes and
# why, what happens to those who decode when a long prompt comes, and what the two settings that protect them cost. 20 minutes.

# %%
from learnvllm.architecture.tracing import RecordingTracer
from learnvllm.scheduling.simulator import Arrival, Simulation
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.show import COLORS, figure, step_plot, step_table, table


def simulate(arrivals, **config):
    tracer = RecordingTracer()
    sim = Simulation(toy_config(**config), tracer=tracer)
    return sim.run(arrivals), list(tracer.events)


requests = [
    Arrival("a", 0.0, make_prompt(6, 1), 8),
    Arrival("b", 0.05, make_prompt(37, 2), 4),
    Arrival("c", 0.05, make_prompt(9, 3), 5),
]
table(
    [[r.request_id, r.time, len(r.prompt), r.max_tokens] for r in requests],
    ["request", "arrives at (s)", "prompt", "max_tokens"],
)

# %% [markdown]
# ## The steps
#
# A budget of 16. `a 6→7` reads: a had 6 tokens computed and has 7 after the step; the dot says that the step sampled a token
# for it. Before you look: in which step does b get its first token, and when is c admitted?

# %%
sim, events = simulate(requests, max_num_batched_tokens=16, block_size=4, num_blocks=41)
step_table(events)

# %%
step_plot(events, budget=16)

# %% [markdown]
# Nothing in the plot is called prefill or decode. Each request is two numbers, and the lower one catches up. Drawn for b: known
# tokens are the line above, computed tokens the line below; a token is sampled where they would meet.


# %%
def counters(events, request_id):
    rows = [
        (e.step, s.num_known, s.num_computed_before + s.num_tokens)
        for e in events
        for s in e.scheduled
        if s.req_id == request_id
    ]
    return [list(column) for column in zip(*rows)]


steps, known, computed = counters(events, "b")
fig, ax = figure(height=2.6)
ax.step(steps, known, where="mid", color=COLORS[0], label="known")
ax.step(steps, computed, where="mid", color=COLORS[1], label="computed, after the step")
ax.set_xlabel("step")
ax.set_ylabel("tokens of b")
ax.legend()
fig

# %% [markdown]
# ## What cutting does not change
#
# The tokens. The toy's next token is a hash of all tokens before it, so a single one lost or doubled would change all that
# follow. Any budget gives the same answers, in more or fewer steps:

# %%
rows = []
for budget in (1, 3, 16, 64):
    sim, _ = simulate(requests, max_num_batched_tokens=budget, block_size=4, num_blocks=41)
    rows.append([budget, len(sim.steps), sim.num_computed_tokens, " ".join(map(str, sim.tokens["b"]))])
table(rows, ["budget", "steps", "tokens computed", "what b produced"])

# %% [markdown]
# ## A long prompt arrives
#
# Eight requests decode, and at 0.5 s a document of 2,000 tokens comes. A step costs 20 ms, and 1 ms for each of its tokens. Each
# point is a token of one of the eight: how long it had to wait for it.

# %%
chats = [Arrival(f"chat {i}", 0.0, make_prompt(20, i), 60) for i in range(8)]
document = Arrival("document", 0.5, make_prompt(2000, 9), 4)


def pauses(**config):
    sim, _ = simulate([*chats, document], **config)
    times = sim.times["chat 0"].tokens
    return times[1:], [after - before for before, after in zip(times, times[1:])], sim


fig, ax = figure()
for color, budget in zip(COLORS, (2048, 512, 128)):
    at, gaps, _ = pauses(max_num_batched_tokens=budget)
    ax.plot(at, [gap * 1000 for gap in gaps], "o", markersize=3, color=color, label=f"budget {budget}")
ax.set_yscale("log")
ax.set_xlabel("seconds")
ax.set_ylabel("ms since the token before")
ax.legend()
fig

# %% [markdown]
# ## Budget or share
#
# A small budget protects those who decode, and slows every prompt, also while nobody decodes. A share bounds prompts in
# proportion to those who decode: beside 8 of them and with a share of 4, a step computes at most 32 tokens of prompts.

# %%
rows = []
for budget, share in ((2048, 0), (512, 0), (128, 0), (64, 0), (512, 16), (512, 8), (512, 4), (512, 2)):
    _, _, sim = pauses(max_num_batched_tokens=budget, prefill_tokens_per_decode=share)
    alone, _ = simulate([document], max_num_batched_tokens=budget, prefill_tokens_per_decode=share)
    rows.append(
        [
            budget,
            share or "none",
            f"{max(sim.times[c.request_id].longest_pause for c in chats) * 1000:.0f}",
            f"{sim.times['document'].time_to_first_token:.2f}",
            f"{alone.times['document'].time_to_first_token:.2f}",
        ]
    )
table(
    rows,
    [
        "budget",
        "share",
        "longest pause of a chat (ms)",
        "document's first token (s)",
        "with nobody else there (s)",
    ],
)

# %% [markdown]
# Compare the row of budget 64 with that of budget 512 and share 8: nearly the same pause, nearly the same first token, but the
# document alone has its first token after 2.1 s instead of 2.6 s. The share costs only while there is somebody to protect.
#
# ## Two prompts at once
#
# A budget also decides who is *not* served. Two documents, and a short question behind them: without a bound on what one
# prompt takes, the question waits for both.

# %%
crowd = [
    Arrival("first", 0.0, make_prompt(1000, 1), 2),
    Arrival("second", 0.0, make_prompt(1000, 2), 2),
    Arrival("question", 0.01, make_prompt(20, 3), 2),
]
rows = []
for threshold in (0, 100, 50):
    sim, _ = simulate(crowd, max_num_batched_tokens=256, long_prefill_token_threshold=threshold)
    rows.append([threshold or "off"] + [f"{sim.times[r.request_id].time_to_first_token:.2f}" for r in crowd])
table(rows, ["long_prefill_token_threshold", *(f"{r.request_id} (s)" for r in crowd)])

# %% [markdown]
# The question gains, the first document loses, and no token was computed in vain. Now write the rule yourself: exercise
# *token_budget*.
