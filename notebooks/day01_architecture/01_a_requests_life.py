# %% [markdown]
# # A request's life
#
# You take one request from text to text, call by call, with the engine's own objects in your hands: what the front end makes
# of it, what crosses to the core, what the scheduler keeps, what the worker is told, and what comes back. 20 minutes; the
# embedded model, on the CPU, in this process.

# %%
import msgspec

from learnvllm import LLM, SamplingParams
from learnvllm.architecture.messages import EngineCoreOutputs
from learnvllm.architecture.tracing import RecordingTracer
from learnvllm.engine_core.serial import MsgpackEncoder
from learnvllm.study.show import COLORS, figure, step_table, table

tracer = RecordingTracer()
llm = LLM(
    multiprocess=False,
    tracer=tracer,
    max_model_len=128,
    block_size=8,
    num_gpu_blocks_override=17,
    max_num_batched_tokens=16,
)
engine = llm.llm_engine
core = engine.engine_core.core
scheduler, executor = core.scheduler, core.executor
encode = MsgpackEncoder().encode


def size(message):
    return sum(len(frame) for frame in encode(message))


config = core.config
table(
    [
        ["config.py: EngineConfig", "the whole tree", f"hash {config.config_hash()[:16]}…"],
        ["… cache_config.block_size", "tokens in a block", config.cache_config.block_size],
        [
            "… scheduler_config.max_num_batched_tokens",
            "tokens in a step",
            config.scheduler_config.max_num_batched_tokens,
        ],
        ["… model_config.max_model_len", "longest request", config.model_config.max_model_len],
    ],
    ["agreed before anything runs", "", ""],
)

# %% [markdown]
# ## In front: text becomes a message
#
# The last place where anybody sees text. `EngineCoreRequest` is what goes to the core: ids and numbers.

# %%
PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Japan is"
params = SamplingParams(temperature=0.0, max_tokens=5)
text, message = engine.input_processor.process_inputs(
    "cmpl-1", PROMPT, params, arrival_time=1_700_000_000.0
)
fields = msgspec.structs.asdict(message)
table([[name, str(value)[:90]] for name, value in fields.items()], ["EngineCoreRequest", ""])

# %%
wire = b"".join(encode(message))
as_text = " ".join(f"{byte:02x}" for byte in wire[:36])
table(
    [
        ["bytes of the message", len(wire)],
        ["of these the token ids", len(msgspec.msgpack.encode(message.prompt_token_ids))],
        [
            "as JSON, with all names and defaults",
            len(
                msgspec.json.encode(
                    fields
                    | {"sampling_params": msgspec.structs.asdict(message.sampling_params)}
                )
            ),
        ],
        ["how it begins", as_text + " …"],
    ],
    ["on the wire", ""],
)

# %% [markdown]
# No field's name is in it: the first element *is* the id, the second *is* the prompt.
#
# ## In the core: two counters
#
# The message becomes a `Request`. We put it into the queue and then do by hand what `EngineCore.step` does: schedule,
# execute, update. After each call we write down the counters. 19 tokens are known and a step computes 16: what will the second
# step compute?

# %%
request = core.preprocess_request(message)
core.add_request(request)
rows, plans, answers = [], [], []


def note(what):
    rows.append(
        [
            what,
            request.status.name,
            request.num_tokens,
            request.num_computed_tokens,
            request.num_uncomputed_tokens,
            len(request.block_hashes),
        ]
    )


note("arrived")
while scheduler.has_requests():
    plan = scheduler.schedule()
    plans.append(plan)
    if plan.total_num_scheduled_tokens:
        note(f"step {len(plans) - 1} scheduled")
    result = executor.execute_model(plan)
    for told in scheduler.update_from_output(plan, result).values():
        answers += told.outputs
    if plan.total_num_scheduled_tokens:
        note(f"step {len(plans) - 1} taken in")
table(
    rows,
    [
        "after",
        "status",
        "known",
        "computed",
        "uncomputed",
        "blocks named",
    ],
)

# %% [markdown]
# The columns are `num_tokens`, `num_computed_tokens` and `num_uncomputed_tokens`. Nothing in this table is called prefill or
# decode: the first number goes up by one whenever the last known token has been computed, and the second catches up.

# %%
fig, ax = figure(height=3.4)
at = range(len(rows))
ax.step(at, [row[2] for row in rows], where="post", color=COLORS[0], label="num_tokens")
ax.step(
    at, [row[3] for row in rows], where="post", color=COLORS[1], label="num_computed_tokens"
)
ax.set_xticks(list(at), [row[0] for row in rows], rotation=60, ha="right", fontsize=7)
ax.set_ylabel("tokens")
_ = ax.legend()

# %% [markdown]
# ## To the worker: what changed
#
# The request is named in full once. From then on a step says only how many tokens, and which blocks are new. The last step
# computes nothing; it tells the worker whom to forget.


# %%
def described(plan):
    new, known = plan.scheduled_new_reqs, plan.scheduled_cached_reqs
    told_new = told_known = "–"
    if new:
        told_new = f"{len(new[0].token_ids)} ids, blocks {new[0].block_ids[0]}"
    if known.req_ids:
        (blocks,) = known.new_block_ids
        told_known = (
            f"{known.num_computed_tokens[0]} computed, new blocks: {blocks and blocks[0]}"
        )
    forget = ", ".join(plan.finished_req_ids) or "–"
    step = plan.step_id - plans[0].step_id
    return [step, told_new, told_known, plan.total_num_scheduled_tokens, forget]


table(
    [described(plan) for plan in plans],
    ["step", "new requests", "known requests", "tokens to compute", "forget"],
)

# %% [markdown]
# ## Back: ids, and one field that says it is over

# %%
table(
    [
        [
            i,
            o.new_token_ids,
            "None" if o.finish_reason is None else o.finish_reason.name,
            o.finished,
            size(EngineCoreOutputs([o])),
        ]
        for i, o in enumerate(answers)
    ],
    ["message", "new_token_ids", "finish_reason", "finished", "bytes"],
)

# %% [markdown]
# In front they become text again. The core never saw any.

# %%
tokenizer = engine.tokenizer
ids = [token for answer in answers for token in answer.new_token_ids]
table(
    [[token, repr(tokenizer.decode([token]))] for token in ids]
    + [["together", repr(tokenizer.decode(ids))]],
    ["id", "text"],
)

# %% [markdown]
# ## The record
#
# Each step also left a `StepEvent` with the tracer. `0→16` reads: 0 tokens were computed before, 16 after; the dot says that a
# token was sampled.

# %%
step_table(tracer.events)

# %% [markdown]
# Does it matter that we called the parts ourselves? The same prompt through the front door:

# %%
output = llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]
table(
    [["by hand", repr(tokenizer.decode(ids))], ["LLM.generate", repr(output.text)]],
    ["way", "answer"],
)

# %% [markdown]
# Now write the counters yourself: exercise *request_counters*; then find out who waits for ever: *never_finished*.
