"""Text in, text out, through both kinds of client, both executors, sync and async scheduling."""

import asyncio

import pytest

from learnvllm.architecture.errors import ConfigError, ValidationError
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.architecture.tracing import RecordingTracer
from learnvllm.assembly import LLM, build_async_llm, build_llm_engine
from learnvllm.engine_core.tokenizer import Tokenizer
from tests.engine.engines import make_config, random_prompts

GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
TEXTS = ["hello world", "the paged attention of the cache is", "日本 tokens", "and " * 20, "x"]


def check(model, prompt: list[int], tokens: list[int], max_tokens: int = 16) -> None:
    """The real generate where it decides; up to a tie where it does not."""
    model.oracle.check(prompt, tokens, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("executor", "async_scheduling", "block_size", "budget"),
    [("uni", False, 16, 64), ("uni", True, 1, 7), ("mp", False, 8, 2048), ("mp", True, 32, 16)],
)
def test_arc_01_three_processes_give_transformers_tokens(
    tiny_model, executor: str, async_scheduling: bool, block_size: int, budget: int
) -> None:
    """Front end here, engine core in its process, workers in theirs (mp) or in the core's (uni)."""
    model = tiny_model("llama")
    config = make_config(
        model.directory,
        executor=executor,
        async_scheduling=async_scheduling,
        block_size=block_size,
        budget=budget,
        max_num_seqs=3,
    )
    prompts = random_prompts([1, 8, 33, 64, 20], model.vocab_size)
    engine = build_llm_engine(config, multiprocess=True)
    try:
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, GREEDY)
        outputs = {}
        while engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in engine.step() if output.finished}
    finally:
        engine.shutdown()
    for i, prompt in enumerate(prompts):
        check(model, prompt, outputs[str(i)].outputs[0].token_ids)


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(
        str(tiny_model("llama").directory),
        multiprocess=False,
        dtype="float32",
        max_model_len=256,
        num_gpu_blocks_override=200,
        num_threads=1,
    ) as llm:
        yield llm


def test_text_in_text_out(tiny_model, llm) -> None:
    model, tokenizer = tiny_model("llama"), Tokenizer.from_directory(tiny_model("llama").directory)
    for text, output in zip(TEXTS, llm.generate(TEXTS, GREEDY, use_tqdm=False), strict=True):
        prompt = tokenizer.encode(text)
        expected = model.oracle.generate(prompt, 16)
        assert output.prompt == text
        assert output.prompt_token_ids == prompt
        assert output.outputs[0].token_ids == expected
        stopped = expected[-1] in model.oracle.eos_token_ids
        assert output.outputs[0].finish_reason == ("stop" if stopped else "length")
        assert output.outputs[0].text == tokenizer.decode(expected)


def test_fault_50_and_prefixes_a_second_generate_is_the_same_and_hits_the_cache(llm) -> None:
    text = "paged attention blocks cache the tokens " * 4
    first = llm.generate([text], GREEDY, use_tqdm=False)[0]
    second = llm.generate([text], GREEDY, use_tqdm=False)[0]
    assert second.outputs[0].token_ids == first.outputs[0].token_ids
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens > 0
    assert llm.llm_engine.reset_prefix_cache()
    assert llm.generate([text], GREEDY, use_tqdm=False)[0].num_cached_tokens == 0


def test_streaming_deltas_add_up_to_the_same_text(tiny_model, llm) -> None:
    whole = llm.generate(TEXTS, GREEDY, use_tqdm=False)

    async def stream() -> list[tuple[str, list[int]]]:
        async_llm = build_async_llm(make_config(tiny_model("llama").directory, max_model_len=256))

        async def one(i: int, text: str) -> tuple[str, list[int]]:
            params = SamplingParams(temperature=0.0, max_tokens=16, output_kind=RequestOutputKind.DELTA)
            pieces = [o.outputs[0] async for o in async_llm.generate(text, params, f"r{i}")]
            return "".join(p.text for p in pieces), [t for p in pieces for t in p.token_ids]

        try:
            return await asyncio.gather(*(one(i, text) for i, text in enumerate(TEXTS)))
        finally:
            async_llm.shutdown()

    assert asyncio.run(stream()) == [(o.outputs[0].text, o.outputs[0].token_ids) for o in whole]


def test_logprobs_are_those_of_transformers(tiny_model, llm) -> None:
    model = tiny_model("llama")
    prompt = random_prompts([20], model.vocab_size, seed=5)[0]
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    output = llm.generate([prompt], params, use_tqdm=False)[0]
    completion = output.outputs[0]
    tokens = prompt + completion.token_ids
    expected = model.oracle.logits(tokens).log_softmax(-1)
    entries = [*(output.prompt_logprobs or [])[1:], *(completion.logprobs or [])]
    assert len(entries) == len(tokens) - 1
    for i, entry in enumerate(entries):
        assert entry is not None
        assert next(iter(entry)) == tokens[i + 1]
        for token, logprob in entry.items():
            assert logprob.logprob == pytest.approx(float(expected[i, token]), abs=2e-4)
        best = expected[i].topk(3 if i >= len(prompt) - 1 else 2).indices.tolist()
        assert set(best) <= set(entry)
    total = sum(entry[token].logprob for entry, token in zip(completion.logprobs or [], completion.token_ids))
    assert completion.cumulative_logprob == pytest.approx(total, abs=1e-5)


def test_stop_strings_cut_the_text_of_the_real_model(llm) -> None:
    whole = llm.generate(["hello world"], GREEDY, use_tqdm=False)[0].outputs[0].text
    stop = whole[4:6]
    params = SamplingParams(temperature=0.0, max_tokens=16, stop=[stop])
    cut = llm.generate(["hello world"], params, use_tqdm=False)[0].outputs[0]
    assert cut.text == whole[: whole.find(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_seeded_samples_do_not_depend_on_the_batch(llm) -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)
    alone = llm.generate(["hello world"], params, use_tqdm=False)[0].outputs[0].token_ids
    crowd = llm.generate(["x", "hello world", *TEXTS], params, use_tqdm=False)
    assert crowd[1].outputs[0].token_ids == alone
    n = llm.generate(["hello world"], SamplingParams(**_fields(params), n=3), use_tqdm=False)[0].outputs
    assert n[0].token_ids == alone
    assert len({tuple(completion.token_ids) for completion in n}) == 3


def test_a_tracer_sees_every_step_and_memory_is_reported(tiny_model) -> None:
    directory, tracer = tiny_model("llama").directory, RecordingTracer()
    flags = {"model": str(directory), "dtype": "float32", "num_gpu_blocks_override": 64}
    with pytest.raises(ConfigError, match="multiprocess=False"):
        LLM(**flags, multiprocess=True, tracer=tracer)
    llm = LLM(**flags, multiprocess=False, tracer=tracer)
    llm.generate("hello", GREEDY, use_tqdm=False)
    assert sum(len(s.sampled) for event in tracer.events for s in event.scheduled) == 16
    report = llm.memory_report()
    assert report["weight_bytes"] > 0
    assert report["kv_cache_bytes"] % 64 == 0


def test_a_program_gets_its_prompts_done_first_and_a_server_keeps_its_clients_going(tiny_model) -> None:
    """Prompts that arrive together are computed together, unless decodes are to be held up little."""
    directory, prompts = str(tiny_model("llama").directory), random_prompts([60] * 4, 100)
    prompt_tokens = []
    for flags in ({}, {"prefill_tokens_per_decode": None}):
        tracer = RecordingTracer()
        llm = LLM(directory, num_gpu_blocks_override=64, max_num_batched_tokens=70, multiprocess=False,
                  tracer=tracer, **flags)  # fmt: skip
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True), use_tqdm=False)
        steps = [[s.num_tokens for s in event.scheduled] for event in tracer.events]
        prompt_tokens.append(max(sum(n for n in step if n > 1) for step in steps if 1 in step))
    assert prompt_tokens == [69, 16]


def _fields(params: SamplingParams) -> dict:
    return {name: getattr(params, name) for name in ("temperature", "seed", "max_tokens", "ignore_eos")}


def test_the_longest_prompt_that_fits_is_served(tiny_model, llm) -> None:
    """Fault 11: max_model_len - 1 tokens leave room for exactly one."""
    model = tiny_model("llama")
    prompt = random_prompts([255], model.vocab_size)[0]
    output = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=None), use_tqdm=False)[0]
    model.oracle.check(prompt, output.outputs[0].token_ids, max_tokens=1)
    assert output.outputs[0].finish_reason in ("length", "stop")


def test_fault_44_temperature_zero_is_greedy_beside_sampled_requests(tiny_model, llm) -> None:
    model = tiny_model("llama")
    prompts = random_prompts([9] * 6, model.vocab_size, seed=8)
    params = [
        SamplingParams(temperature=t, max_tokens=10, ignore_eos=True) for t in (0.0, 1.0, 1e-6, 2.0, 0.0, 0.7)
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for i in (0, 2, 4):
        model.oracle.check(prompts[i], outputs[i].outputs[0].token_ids, max_tokens=10, ignore_eos=True)


def test_chat_goes_through_the_models_template(tiny_model, llm) -> None:
    conversations = [
        [{"role": "user", "content": "hello"}],
        [{"role": "system", "content": "is"}, {"role": "user", "content": "the world"}],
    ]
    both = llm.chat(conversations, GREEDY, use_tqdm=False)
    one = llm.chat(conversations[1], GREEDY, use_tqdm=False)
    assert one[0].outputs[0].token_ids == both[1].outputs[0].token_ids
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert both[0].prompt_token_ids == llm.get_tokenizer().encode(text)
    with pytest.raises(ValidationError, match="messages is empty"):
        llm.chat([], GREEDY)


@pytest.mark.parametrize(
    "messages",
    [
        *(None, 5, "hi", b"hi", {"role": "user", "content": "hi"}, [None], ["hi"], [["hi"]]),
        [[{"role": "user", "content": "hi"}], {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "\ud800"}],
    ],
)
def test_what_is_no_conversation_is_refused(llm, messages) -> None:
    with pytest.raises(ValidationError) as caught:
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert (caught.value.parameter or "").startswith("messages")
