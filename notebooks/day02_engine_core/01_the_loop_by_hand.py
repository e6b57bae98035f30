# %% [markdown]
# # The loop by hand
#
# You drive the engine core yourself: one call of `step()` is one forward pass. You will see what each step computes and
# for whom, where its time goes, what an abort does in the middle of a step, and how a second step in flight changes the
# order of things. 20 minutes; the embedded model, on the CPU, in this process.

# %%
from learnvllm import LLM, SamplingParams
from learnvllm.architecture.tracing import RecordingTracer
from learnvllm.study.show import COLORS, figure, step_table, table

tracer = RecordingTracer()
llm = LLM(
    multiprocess=False,
    tracer=tracer,
    max_model_len=512,
    num_gpu_blocks_override=64,
    max_num_batched_tokens=32,
)
engine = llm.llm_engine
core = engine.engine_core.core
tokenizer = engine.tokenizer
table(
    [
        ["blocks of the KV pool", core.kv_cache_config.num_blocks],
        ["tokens in a block", core.kv_cache_config.block_size],
        ["tokens a step may compute", core.config.scheduler_config.max_num_batched_tokens],
        ["steps in flight", 2 if core.async_scheduling else 1],
        ["is there work?", str(core.has_work())],
    ],
    ["the engine core", ""],
)

# %% [markdown]
# ## Three requests, step by step
#
# The door turns text and parameters into an `EngineCoreRequest`: token ids and numbers, no text. From here on the core
# does not know what any of it says. The third prompt is longer than a step may be.

# %%
PROMPTS = {
    "capital": "The capital of France is",
    "count": "1, 2, 3, 4, 5,",
    "long": "Once upon a time there was a small engine that could only do one thing at a time, and it did that one "
    "thing so well, step after step after step, that everybody in the village came to watch it and",
}


def make(request_id, max_tokens):
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    _, request = engine.input_processor.process_inputs(request_id, PROMPTS[request_id], params)
    return request


requests = [make("capital", 5), make("count", 8), make("long", 6)]
table(
    [
        [
            r.request_id,
            len(r.prompt_token_ids),
            r.sampling_params.max_tokens,
            str(r.prompt_token_ids[:5]) + " …",
        ]
        for r in requests
    ],
    ["request", "prompt tokens", "max_tokens", "what the core gets"],
)

# %% [markdown]
# Now the loop itself. Each turn is one call of `step()`; it returns outputs by client (here there is one, number 0) and
# whether the model ran. Before you look: in which step does *long* get its first token?

# %%
for request in requests:
    core.add_request(request)

rows, answers = [], {r.request_id: [] for r in requests}
while core.has_work():
    outputs, ran = core.step()
    told = []
    for output in outputs[0].outputs if outputs else []:
        answers[output.request_id] += output.new_token_ids
        text = tokenizer.decode(output.new_token_ids)
        told.append(
            f"{output.request_id}: {text!r}" + (f" ({output.finish_reason!s})" if output.finished else "")
        )
    rows.append([len(rows), "yes" if ran else "no", "; ".join(told) or "–"])
table(rows, ["step", "model ran", "outputs"])

# %% [markdown]
# The same steps as the engine's own record has them. `0→5 ●` reads: 5 tokens computed, and a token sampled. The long
# prompt is computed in three pieces beside the others, and has its first token with the third. The last call above
# computed nothing, so it is not in the record: it told the workers that the last requests have ended.

# %%
step_table(tracer.events)

# %%
table(
    [[name, PROMPTS[name][-30:], tokenizer.decode(ids)] for name, ids in answers.items()],
    ["request", "prompt ends", "answer"],
)

# %% [markdown]
# ## Where a step's time goes
#
# Every step notes how long it scheduled, executed (the forward pass within) and took in. What is not forward pass is the
# engine's own work. A chunk of a prompt is a longer step than a decode.

# %%
steps = [event for event in tracer.events if event.scheduled]
fig, ax = figure()
bottom = [0.0] * len(steps)
parts = {
    "schedule": [e.phases["schedule"] for e in steps],
    "forward": [e.phases["forward"] for e in steps],
    "rest of execute": [e.phases["execute"] - e.phases["forward"] for e in steps],
    "update": [e.phases["update"] for e in steps],
}
for color, (name, seconds) in zip(COLORS, parts.items()):
    milliseconds = [1000 * s for s in seconds]
    ax.bar(range(1, len(steps) + 1), milliseconds, bottom=bottom, color=color, label=name)
    bottom = [a + b for a, b in zip(bottom, milliseconds)]
ax.set_xlabel("step")
ax.set_ylabel("ms")
_ = ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))

# %% [markdown]
# ## An abort in the middle of a step
#
# `take_aborts` is asked between a step's result and its update. We play the input thread: an abort of *count* is there
# when the second step's result comes. Its token has been computed, and nobody gets it; its blocks are free at once.

# %%
tracer.events.clear()
arrived = []
core.take_aborts = lambda: [arrived.pop()] if arrived else []
core.add_request(make("capital", 4))
core.add_request(make("count", 8))
rows = []
while core.has_work():
    if len(rows) == 1:
        arrived.append("count")
    outputs, _ = core.step()
    tokens = {
        o.request_id: repr(tokenizer.decode(o.new_token_ids)) for o in (outputs[0].outputs if outputs else [])
    }
    pool = core.scheduler.kv_cache_manager.block_pool
    rows.append(
        [len(rows) + 1, tokens.get("capital", "–"), tokens.get("count", "–"), pool.get_num_free_blocks()]
    )
core.take_aborts = None
table(rows, ["step", "capital got", "count got", "free blocks after"])

# %% [markdown]
# ## What crosses to another process
#
# In a server the core lives in its own process. A request and a step's outputs are a message each; here are their sizes, by
# the codec that sends them, and how many of their bytes are the requests' names, which have 37 characters in a server. A
# token id is 3 bytes at most: it is most of a long prompt, while a step's outputs are mostly names, as Day 1 computed.

# %%
import random

from learnvllm.architecture.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from learnvllm.engine_core.serial import MsgpackEncoder

encode = MsgpackEncoder().encode
params = SamplingParams(temperature=0.0, max_tokens=64)


def size(message):
    return sum(len(frame) for frame in encode(message))


rows = []
for n in (5, 50, 512):
    rng = random.Random(0)
    ids = [rng.randrange(49_152) for _ in range(n)]
    request = EngineCoreRequest(f"cmpl-{n:032}", ids, params, [2], 1_700_000_000.0)
    rows.append([f"a request of {n} prompt tokens", size(request), 37, 3 * n])
for n in (1, 16, 128):
    outputs = EngineCoreOutputs(
        [EngineCoreOutput(f"cmpl-{i:032}", [40_000]) for i in range(n)], timestamp=1234.5
    )
    rows.append([f"a step's outputs for {n} request{'s' * (n > 1)}", size(outputs), 37 * n, 3 * n])
table(rows, ["message", "bytes", "of which names", "token ids, at most"])

# %% [markdown]
# ## Two steps in flight
#
# The same model with async scheduling. We write down what each call of `step()` did: which step it scheduled, and whose
# outputs it returned. The first call returns nothing, at once; from then on the core is one step ahead of what it knows.

# %%
llm.llm_engine.shutdown()
ahead = LLM(multiprocess=False, async_scheduling=True, max_model_len=512, num_gpu_blocks_override=64)
engine = ahead.llm_engine
core = engine.engine_core.core

diary = []
schedule, update = core.scheduler.schedule, core.scheduler.update_from_output


def observed_schedule():
    step = schedule()
    diary.append(("scheduled", step.step_id, step.total_num_scheduled_tokens))
    return step


def observed_update(step, output):
    diary.append(("taken in", step.step_id, [ids for ids in output.sampled_token_ids if ids]))
    return update(step, output)


core.scheduler.schedule, core.scheduler.update_from_output = observed_schedule, observed_update
core.add_request(make("capital", 4))
rows = []
while core.has_work():
    diary.clear()
    outputs, ran = core.step()
    planned = next(
        (
            f"step {n}, {tokens or 'no'} token{'s' * (tokens != 1)}"
            for kind, n, tokens in diary
            if kind == "scheduled"
        ),
        "–",
    )
    taken = next((f"step {n}" for kind, n, _ in diary if kind == "taken in"), "–")
    text = "".join(tokenizer.decode(o.new_token_ids) for o in (outputs[0].outputs if outputs else []))
    rows.append([len(rows) + 1, planned, taken, repr(text) if text else "–"])
table(rows, ["call", "scheduled", "taken in", "text"])

# %% [markdown]
# Reading the table from left to right: each call plans a step whose input token it does not know. The worker fills that in
# itself, since it has just sampled it. How the scheduler can plan it nevertheless is Day 3. When four tokens are known or in
# flight there is nothing left to plan: two steps without tokens follow, the second of which tells the workers of the end.

# %%
ahead.llm_engine.shutdown()
ahead_of_time = [row for row in rows[1:] if "no token" not in row[1] and row[1] != "–"]
table([["steps planned before their input token was known", len(ahead_of_time)]], ["", "count"])
