# %% [markdown]
# # The engine's own process
#
# The same core, now as a server has it: in a process of its own, with requests as coroutines on this side. You will see what the
# process says when it is ready, two answers stream at once, a reader who leaves in the middle, calls out of band, the metrics, and
# what a client hears when the engine is killed. 15 minutes; the embedded model, on the CPU.

# %%
from learnvllm import SamplingParams
from learnvllm.architecture.sampling_params import RequestOutputKind
from learnvllm.assembly import build_async_llm, create_engine_config
from learnvllm.engine_core.arg_utils import EngineArgs
from learnvllm.study.show import COLORS, figure, table

config = create_engine_config(EngineArgs(max_model_len=512, num_gpu_blocks_override=17))
llm = build_async_llm(config)
ready = llm.engine_core.ready
table(
    [
        ["blocks", ready.num_gpu_blocks],
        ["longest prompt the pool can hold", ready.kv_cache_tokens],
        ["configuration", ready.config_hash[:12] + " …"],
        ["the same as ours?", str(ready.config_hash == config.config_hash())],
    ],
    ["READY says", ""],
)

# %% [markdown]
# The engine loaded the model while this side waited for one message. The pool's size comes with it (we asked for a small one), so a prompt
# that could never fit is refused here, before anything is sent.

# %%
from learnvllm.architecture.errors import ValidationError

try:
    llm.add_request("too-long", [5] * 300, SamplingParams())
except ValidationError as error:
    refused = str(error)
table([[refused]], ["a prompt of 300 tokens"])

# %% [markdown]
# ## Two readers
#
# Each request is an async generator. We note when each output arrives, counted in outputs of both. They take turns: both are in the
# same batch, so one step gives a token to each.

# %%
import asyncio
import itertools

clock = itertools.count()


async def read(request_id, prompt, max_tokens, leave_after=None):
    """Arrival numbers and texts of one request; leaves the loop after some outputs, as a client that hangs up."""
    params = SamplingParams(
        temperature=0.0, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    got = []
    generator = llm.generate(prompt, params, request_id)
    async for output in generator:
        got.append((next(clock), output.outputs[0].text))
        if leave_after and len(got) == leave_after:
            break
    await generator.aclose()  # what a cancelled HTTP handler does
    return got


first, second = await asyncio.gather(read("one", "The capital of France is", 12), read("two", "1, 2, 3,", 12))
fig, ax = figure(height=1.8)
for row, (got, color) in enumerate(zip((first, second), COLORS)):
    ax.scatter([at for at, _ in got], [row] * len(got), color=color, s=40)
ax.set_yticks([0, 1], ["one", "two"])
ax.set_ylim(-0.6, 1.6)
_ = ax.set_xlabel("arrival, counted over both")

# %%
table([["one", "".join(t for _, t in first)], ["two", "".join(t for _, t in second)]], ["request", "answer"])

# %% [markdown]
# ## A reader who leaves
#
# *short* breaks out of its loop after 3 outputs of the 200 it asked for. The generator's `finally` sends an abort; the core ends the
# request and frees its blocks. We ask the core itself, through a utility call, how many requests it has: messages are handled in order,
# so the answer comes from behind the abort.

# %%
before = await llm.engine_core.call_utility_async("get_request_counts")
got = await read("short", "Once upon a time", 200, leave_after=3)
after = await llm.engine_core.call_utility_async("get_request_counts")
table(
    [["before", *before], [f"after {len(got)} of 200 tokens: {''.join(t for _, t in got)!r}", *after]],
    ["", "running", "waiting"],
)

# %% [markdown]
# ## Out of band
#
# A utility call travels as a message with a number and comes back as the result of a future, or as the exception that it raised there, with
# its own class. There is a short list of names.

# %%
rows = []
for method, args in (
    ("get_request_counts", []),
    ("reset_prefix_cache", []),
    ("check_health", []),
    ("shutdown", []),
):
    try:
        answer = repr(await llm.engine_core.call_utility_async(method, *args))
    except ValidationError as error:
        answer = f"{type(error).__name__}: {error}"
    rows.append([f"{method}({', '.join(map(repr, args))})", answer])
table(rows, ["call", "answer"])

# %% [markdown]
# ## Metrics
#
# Counted where outputs are processed, on this side, and named as vLLM's: a dashboard made for it works. Tokens generated so far, and how
# requests ended:

# %%
lines = [line for line in llm.metrics_text().splitlines() if not line.startswith("#")]
wanted = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:request_success_total")
table(
    [line.rsplit(" ", 1) for line in lines if line.startswith(wanted) and not line.endswith(" 0.0")],
    ["metric", "value"],
)

# %% [markdown]
# ## When the engine is killed
#
# A request is running when the process gets SIGKILL, which it cannot answer. The receiving thread notices that it is gone; whoever waits
# gets an error that says so, and so does everybody after.

# %%
import os
import signal

from learnvllm.architecture.errors import EngineDeadError


async def read_and_kill():
    got = []
    params = SamplingParams(
        temperature=0.0, max_tokens=400, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    try:
        async for output in llm.generate("Once upon a time", params, "doomed"):
            got.append(output.outputs[0].text)
            if len(got) == 3:
                os.kill(llm.engine_core.process_id, signal.SIGKILL)
    except EngineDeadError as error:
        return len(got) >= 3, str(error)


had_tokens, said = await read_and_kill()
try:
    llm.check_health()
except EngineDeadError as error:
    later = str(error)
llm.shutdown()
table(
    [
        ["had got tokens before", str(had_tokens)],
        ["the reader heard", said],
        ["who comes later hears", later],
    ],
    ["", ""],
)
