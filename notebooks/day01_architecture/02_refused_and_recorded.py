# %% [markdown]
# # Refused, and recorded
#
# The two ends of an engine's life: the moment in which a wrong setting is refused, and the record from which you learn what
# it did. You will see every kind of refusal, a hash that two processes agree on and one that they do not, and a trace as
# Perfetto draws it. 15 minutes, no model.

# %%
import json
import os
import subprocess
import sys

from matplotlib.patches import Patch

from learnvllm.architecture import envs
from learnvllm.architecture.config import CacheConfig, EngineConfig, SchedulerConfig
from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.tracing import RecordingTracer, merge_decodes, to_chrome_trace
from learnvllm.scheduling.simulator import Arrival, Simulation
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.show import COLORS, figure, step_table, table

model = toy_config(max_model_len=1000).model_config


def refused(build):
    try:
        build()
    except ConfigError as error:
        return [error.parameter, repr(error.value), str(error)]
    return ["–", "", "accepted"]


cases = {
    "a value out of range": lambda: SchedulerConfig(max_num_seqs=0),
    "a wrong type": lambda: CacheConfig(block_size="big"),
    "an unknown field": lambda: CacheConfig(blocksize=16),
    "not one of the choices": lambda: SchedulerConfig(policy="lottery"),
    "two parts at odds": lambda: EngineConfig(
        model, scheduler_config=SchedulerConfig(enable_chunked_prefill=False)
    ),
    "no block to hand out": lambda: EngineConfig(
        model, cache_config=CacheConfig(num_gpu_blocks_override=1)
    ),
    "nothing": lambda: EngineConfig(model),
}
table(
    [[name, *refused(build)] for name, build in cases.items()],
    ["what is wrong", "parameter", "value", "error"],
)

# %% [markdown]
# Each is one line, names the field to change and gives the value. The fifth is the one that no part can see alone: a budget of
# 512 is fine, a model of 1,000 tokens is fine, chunking may be off. Together they would let a prompt wait for ever.
#
# Where exactly is the border? Budgets against max_model_len, with and without chunked prefill:


# %%
def allowed(budget, length, chunked):
    scheduler = SchedulerConfig(
        max_num_batched_tokens=budget, enable_chunked_prefill=chunked, max_num_seqs=16
    )
    config = toy_config(max_model_len=length).model_config
    return refused(lambda: EngineConfig(config, scheduler_config=scheduler))[2] == "accepted"


lengths = (256, 512, 1024, 4096)
rows = [
    [
        budget,
        *(
            "yes" if allowed(budget, length, chunked) else "refused"
            for chunked in (True, False)
            for length in lengths
        ),
    ]
    for budget in (16, 256, 511, 512, 4096)
]
table(
    rows,
    [
        "budget",
        *(
            f"{'cut' if chunked else 'whole'}, {length}"
            for chunked in (True, False)
            for length in lengths
        ),
    ],
)

# %% [markdown]
# ## The environment
#
# A variable has a parser, so nonsense is refused like a flag; one that nobody knows is reported with what was probably meant.


# %%
def read(name, text):
    try:
        return repr(envs.get(name, {name: text}))
    except ConfigError as error:
        return str(error)


tried = [
    ("LEARNVLLM_NUM_THREADS", "3"),
    ("LEARNVLLM_NUM_THREADS", "many"),
    ("LEARNVLLM_ENABLE_MULTIPROCESSING", "off"),
    ("LEARNVLLM_CPU_KERNELS", "cuda"),
]
table([[name, text, read(name, text)] for name, text in tried], ["variable", "text", "gives"])

# %%
table(
    [
        [name]
        for name in envs.unknown_variables(
            {"LEARNVLLM_NUM_THREAD": "2", "LEARNVLLM_HOME": "x", "PATH": "y"}
        )
    ],
    ["set, and unknown"],
)

# %% [markdown]
# ## A hash that two processes agree on
#
# The front end and the engine each have a configuration. Whether it is one is found out when they shake hands: they compare
# `config_hash`. Here are two fresh processes, and two ways to hash the same tree. The salt of Python's `hash()` is fixed by
# hand, so that this page shows the same each time.

# %%
CODE = """
from learnvllm.scheduling.toy import toy_config
config = toy_config()
print(hash(repr(config)), config.config_hash())
"""


def elsewhere(salt):
    environ = {**os.environ, "PYTHONHASHSEED": salt}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environ
    )
    return done.stdout.split()


one, two = elsewhere("1"), elsewhere("2")
table(
    [
        ["hash(repr(config))", one[0], two[0], str(one[0] == two[0])],
        ["config.config_hash()", one[1][:16] + "…", two[1][:16] + "…", str(one[1] == two[1])],
    ],
    ["", "first process", "second process", "agree"],
)

# %% [markdown]
# ## The record of a run
#
# Three requests on a pool that is too small for them, simulated: a step costs 20 ms and 1 ms for each token. In which step does
# somebody give way?

# %%
tracer = RecordingTracer()
sim = Simulation(
    toy_config(num_blocks=9, block_size=4, max_num_batched_tokens=16), tracer=tracer
)
clock = []
for number, name in enumerate("abc"):
    sim.add(Arrival(name, 0.0, make_prompt(8, number), 9))
while sim.is_busy:
    begin = sim.now
    sim.step()
    clock.append(begin)
events = list(tracer.events)
for event, begin in zip(events, clock):  # the simulation's clock instead of this machine's
    tokens = sum(share.num_tokens for share in event.scheduled)
    event.start = begin
    event.phases = {
        "schedule": 0.001,
        "execute": 0.018 + 0.001 * tokens,
        "forward": 0.015 + 0.001 * tokens,
        "update": 0.001,
    }
step_table(events)

# %% [markdown]
# `to_chrome_trace` makes rows of it, which Perfetto draws. Here we draw them ourselves: a track for the steps, one for each
# request.

# %%
trace = to_chrome_trace(events)


def gantt(trace, title):
    rows = trace["traceEvents"]
    names = {row["tid"]: row["args"]["name"] for row in rows if row["ph"] == "M"}
    colors = {"prefill": COLORS[1], "decode": COLORS[0], "forward": COLORS[2]}
    fig, ax = figure(height=2.4)
    for row in rows:
        if row["ph"] == "X" and row["name"] in colors:
            ax.barh(
                names[row["tid"]],
                row["dur"] / 1000,
                left=row["ts"] / 1000,
                height=0.7,
                color=colors[row["name"]],
                edgecolor="none" if row["name"] == "forward" else "#7d7c7b",
                linewidth=0.6,
            )
    ax.invert_yaxis()
    ax.set_xlabel("ms")
    ax.set_title(title)
    keys = [Patch(color=color, label=name) for name, color in colors.items()]
    ax.legend(handles=keys, loc="center left", bbox_to_anchor=(1.0, 0.5))


gantt(trace, "a slice for each step")

# %% [markdown]
# The gap in c's track is its preemption: when it is back it is prefilled again, output included. The file that
# `--trace-file` writes has one slice for each run of decodes, so that only such gaps are left to be seen:

# %%
gantt(merge_decodes(trace), "decodes in step after step are one slice")

# %% [markdown]
# For the same reason the file stays small enough to be opened:

# %%
rows = []
for count in (1, 4, 16, 64):
    tracer = RecordingTracer()
    Simulation(toy_config(max_num_batched_tokens=256), tracer=tracer).run(
        Arrival(f"r{i}", 0.0, make_prompt(20 + 3 * i, i), 200) for i in range(count)
    )
    plain = to_chrome_trace(tracer.events)
    merged = merge_decodes(plain)
    rows.append(
        [
            count,
            len(tracer.events),
            *(
                sum(row["name"] == "decode" for row in t["traceEvents"])
                for t in (plain, merged)
            ),
            *(f"{len(json.dumps(t)) / 1e6:.1f}" for t in (plain, merged)),
        ]
    )
table(
    rows,
    [
        "requests of 200 tokens",
        "steps",
        "slices of decodes",
        "merged",
        "file (MB)",
        "merged (MB)",
    ],
)

# %% [markdown]
# Now refuse and draw yourself: exercises *config_checks*, *chrome_trace* and *merge_decodes*.
