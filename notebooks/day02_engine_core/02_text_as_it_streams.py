# %% [markdown]
# # Text as it streams
#
# From token ids to what a reader sees: characters that take several tokens, stop strings that must not be shown even by
# half, outputs that wait for company, and a reader who is late. 20 minutes; the embedded model, on the CPU.

# %%
from learnvllm import LLM, SamplingParams
from learnvllm.study.show import COLORS, figure, table

llm = LLM(multiprocess=False, max_model_len=512, num_gpu_blocks_override=64)
engine = llm.llm_engine
tokenizer = engine.tokenizer
table(
    [["tokens in the vocabulary", tokenizer.vocab_size], ["end of turn", tokenizer.eos_token]],
    ["tokenizer", ""],
)

# %% [markdown]
# ## Characters are not tokens
#
# Each row is one token. Decoded alone it may be half a character (�). Decoded with what came before, it is text as soon as the
# character is whole, and nothing before that. The last column is what `TokenStream` gives out.

# %%
from learnvllm.engine_core.detokenizer import TokenStream

text = " naïve café 🎉 日本"
ids = tokenizer.encode(text, add_special_tokens=False)
stream = TokenStream(tokenizer, tokenizer.encode("A"), skip_special_tokens=True)
rows = [[i, repr(tokenizer.id_to_token(i)), repr(tokenizer.decode([i])), repr(stream.push(i))] for i in ids]
table(rows, ["id", "in the vocabulary", "decoded alone", "given out"])

# %% [markdown]
# Decoding everything anew for each token would be right as well, and costs the square of the length. Token decodings for an
# answer of n tokens:

# %%
lengths = [16, 64, 256, 512, 2048]
table(
    [[n, n * (n + 1) // 2, n * 2] for n in lengths],
    ["n", "everything anew", "a context of about one token, and the new one"],
)

# %% [markdown]
# ## A stop string that is held back
#
# The model answers with a list; we stop at the third point, `\n3.`. Step by step: the text so far, what may be shown, and
# what is held back because it could become the stop string.

# %%
from learnvllm.engine_core.detokenizer import IncrementalDetokenizer, undecided_length

PROMPT = "Three fruits:\n1. Apple: a round fruit that grows on trees.\n2."
STOP = "\n3."
(answer,) = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=32), use_tqdm=False)
ids = answer.outputs[0].token_ids
detokenizer = IncrementalDetokenizer(tokenizer, answer.prompt_token_ids, SamplingParams(stop=[STOP]))
rows, held = [], []
for token_id in ids:
    stop = detokenizer.update([token_id], stop_terminated=False)
    shown = detokenizer.next_text(finished=stop is not None, delta=True)
    held.append(0 if stop else undecided_length(detokenizer.text, [STOP]))
    rows.append(
        [len(rows) + 1, repr(tokenizer.decode([token_id])), repr(shown), held[-1], stop and repr(stop)]
    )
    if stop:
        break
table(rows[-14:], ["token", "its text", "streamed", "held back", "stop string"])

# %% [markdown]
# vLLM holds back a fixed number of characters, the longest stop string less one: always safe, and always late. Ours holds back
# what could still become one. For the answer above, and a longer stop string that never comes:

# %%
LONG_STOP = "\n\nUser: "
texts = [tokenizer.decode(ids[: n + 1]) for n in range(len(ids))]
ours = [undecided_length(t, [LONG_STOP]) for t in texts]
fixed = [min(len(t), len(LONG_STOP) - 1) for t in texts]
fig, ax = figure()
ax.step(
    range(1, len(ids) + 1), fixed, where="mid", color=COLORS[1], label="fixed: longest stop string less one"
)
ax.step(range(1, len(ids) + 1), ours, where="mid", color=COLORS[0], label="what could become a stop string")
ax.set_xlabel("token")
ax.set_ylabel("characters held back")
_ = ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=2)

# %% [markdown]
# ## The engine finds it, the core hears of it
#
# Through the whole engine: the stop string is found in front, and the request is aborted in the core. The ids keep the token that
# completed the stop string; the text is cut before it.

# %%
(stopped,) = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=32, stop=[STOP]), use_tqdm=False)
done = stopped.outputs[0]
table(
    [
        ["text", repr(done.text)],
        ["text of all its ids", repr(tokenizer.decode(done.token_ids))],
        ["finish_reason", done.finish_reason],
        ["stop_reason", repr(done.stop_reason)],
        ["requests left in the core", sum(engine.engine_core.core.get_request_counts())],
    ],
    ["", "stopped request"],
)

# %% [markdown]
# ## Fewer, larger outputs
#
# `stream_interval` on a real request: the first token at once, then one output for every N tokens, then the rest. The text is the
# same; the number of outputs is not.

# %%
from learnvllm.architecture.sampling_params import RequestOutputKind


DELTA, CUMULATIVE = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE


def stream_outputs(wanted, max_tokens):
    """Streams of the same prompt, all in one batch: name -> its outputs. `wanted`: name -> (interval, kind)."""
    for name, (interval, kind) in wanted.items():
        params = SamplingParams(
            temperature=0.0,
            ignore_eos=True,
            max_tokens=max_tokens,
            stream_interval=interval,
            output_kind=kind,
        )
        engine.add_request(name, PROMPT, params)
    outputs = {name: [] for name in wanted}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id].append(output.outputs[0])
    return outputs


INTERVALS = (1, 4, 8, 16)
wanted = {f"{kind.name} {n}": (n, kind) for kind in (DELTA, CUMULATIVE) for n in INTERVALS}
streams = stream_outputs(wanted, max_tokens=48)
carried = {name: sum(len(output.token_ids) for output in outputs) for name, outputs in streams.items()}
table(
    [[n, len(streams[f"DELTA {n}"]), carried[f"DELTA {n}"], carried[f"CUMULATIVE {n}"]] for n in INTERVALS],
    ["N", "outputs", "ids carried, delta", "ids carried, cumulative"],
)

# %%
texts = {"".join(o.text for o in streams[f"DELTA {n}"]) for n in INTERVALS}
texts |= {streams[f"CUMULATIVE {n}"][-1].text for n in INTERVALS}
table([["different texts among the eight streams", len(texts)]], ["", "count"])

# %%
outputs = stream_outputs({"chunks": (6, DELTA)}, max_tokens=20)["chunks"]
table(
    [[i + 1, len(o.token_ids), repr(o.text), o.finish_reason] for i, o in enumerate(outputs)],
    ["output", "tokens", "text", "finish_reason"],
)

# %% [markdown]
# ## A reader who is late
#
# Between the engine and a coroutine there is one slot. The engine puts an output at every tick; the reader looks at ticks 1, 2, 7
# and 20 only. What it finds is one output, however much has happened.

# %%
from learnvllm.engine_core.output_collector import RequestOutputCollector

collector = RequestOutputCollector(RequestOutputKind.DELTA)
params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
engine.add_request("late", PROMPT, params)
rows = []
for tick in range(1, 21):
    for output in engine.step():
        collector.put(output)
    if tick in (1, 2, 7, 20) and (output := collector.get_nowait()) is not None:
        rows.append(
            [tick, len(output.outputs[0].token_ids), repr(output.outputs[0].text), str(output.finished)]
        )
table(rows, ["tick", "tokens in the output", "text", "finished"])

# %%
llm.llm_engine.shutdown()
table(
    [["tokens the reader has in the end", sum(row[1] for row in rows)], ["outputs it took", len(rows)]],
    ["", "count"],
)
