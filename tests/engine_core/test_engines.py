"""LLMEngine, LLM.generate and AsyncLLM over the scripted executor: order, errors, cancellation, deaths."""

import asyncio
import itertools
import os
import random
import signal
import threading

import numpy as np
import pytest

from learnvllm.architecture.errors import EngineDeadError, QueueFullError, ValidationError
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core.async_llm import AsyncLLM
from learnvllm.engine_core.core_client import InprocClient
from learnvllm.engine_core.llm_engine import LLMEngine
from learnvllm.engine_core.metrics.loggers import StatLoggerManager
from learnvllm.engine_core.mp_client import AsyncMPClient, SyncMPClient
from learnvllm.engine_core.offline import OfflineInferenceMixin
from tests.engine_core.parts import build_scripted_core, byte_level_tokenizer, expected_tokens, make_config

TOKENIZER = byte_level_tokenizer()
DELTA = RequestOutputKind.DELTA


class Offline(OfflineInferenceMixin):
    def __init__(self, engine: LLMEngine) -> None:
        self.llm_engine = engine
        self._request_counter = itertools.count()


def in_process(**config) -> Offline:
    engine_config = make_config(**config)
    client = InprocClient(build_scripted_core(engine_config))
    return Offline(
        LLMEngine(engine_config, TOKENIZER, client, StatLoggerManager.create(engine_config, client.ready))
    )


@pytest.fixture(params=["inproc", "mp"])
def llm(request):
    config = make_config(max_num_seqs=3)
    client = (
        InprocClient(build_scripted_core(config))
        if request.param == "inproc"
        else SyncMPClient(build_scripted_core, config)
    )
    yield Offline(LLMEngine(config, TOKENIZER, client))
    client.shutdown()


def params(max_tokens: int = 6, **more) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **more)


# --------------------------------------------------------------------------------------------------- offline


def test_prompts_of_any_form_come_back_in_order(llm) -> None:
    prompts = ["hello", [5, 6, 7], {"prompt": "hello world"}, {"prompt_token_ids": [9] * 30}]
    lengths = [9, 2, 5, 1]
    outputs = llm.generate(prompts, [params(n) for n in lengths], use_tqdm=False)
    ids = [TOKENIZER.encode("hello"), [5, 6, 7], TOKENIZER.encode("hello world"), [9] * 30]
    assert [o.prompt_token_ids for o in outputs] == ids
    assert [o.prompt for o in outputs] == ["hello", None, "hello world", None]
    assert [o.outputs[0].token_ids for o in outputs] == [expected_tokens(p, n) for p, n in zip(ids, lengths)]
    assert [o.outputs[0].text for o in outputs] == [TOKENIZER.decode(o.outputs[0].token_ids) for o in outputs]


def test_one_prompt_may_come_bare(llm) -> None:
    for prompt in ("hello", [5, 6], {"prompt": "hello"}):
        (output,) = llm.generate(prompt, params(), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 6
    assert llm.generate([], use_tqdm=False) == []


@pytest.mark.parametrize("ids", [(5, 6), range(5, 7), np.array([5, 6]), np.array([5, 6], dtype=np.int32)])
def test_token_ids_may_come_in_any_sequence(ids) -> None:
    llm = in_process()
    for prompts in (ids, [ids], {"prompt_token_ids": ids}):
        (output,) = llm.generate(prompts, params(), use_tqdm=False)
        assert output.prompt_token_ids == [5, 6]
        assert [type(token) for token in output.prompt_token_ids] == [int, int]
    assert len(llm.generate(np.array([[5, 6], [7, 8]]), params(), use_tqdm=False)) == 2


@pytest.mark.parametrize(
    "prompts",
    [
        *(None, 5, 5.0, b"abc", {5, 6}, object(), [None], [5, "a"], [b"abc"], [True], np.array([0.5])),
        *({"prompt_token_ids": "12"}, {"prompt_token_ids": None}, {"prompt": [5]}, {"prompt": None}, {5: 6}),
        *(
            {"prompt": "a", "x": 1},
            {"prompt": "a", "prompt_token_ids": [5]},
            {"prompt": "\ud800"},
            "\ud800abc",
        ),
    ],
)
def test_what_is_no_prompt_is_refused_by_the_name_of_the_parameter(prompts) -> None:
    llm = in_process()
    with pytest.raises(ValidationError) as caught:
        llm.generate(prompts, params(), use_tqdm=False)
    assert caught.value.parameter in ("prompts", "prompt", "prompt_token_ids")
    str(caught.value).encode()
    assert len(llm.generate([[5]], params(), use_tqdm=False)) == 1


@pytest.mark.parametrize("wrong", [{"max_tokens": 2}, "greedy", 5, [{"max_tokens": 2}] * 2])
def test_parameters_of_another_type_are_refused_by_their_type_not_their_number(wrong) -> None:
    with pytest.raises(ValidationError, match="sampling_params must be SamplingParams or a list of them"):
        in_process().generate(["hello", "world"], wrong, use_tqdm=False)
    with pytest.raises(ValidationError, match="priority must be int"):
        in_process().generate(["hello", "world"], priority="low", use_tqdm=False)


def test_an_output_kind_that_does_not_exist_is_noticed_though_generate_has_its_own() -> None:
    with pytest.raises(ValidationError, match="output_kind=7"):
        in_process().generate([[5]], params(output_kind=7), use_tqdm=False)


def test_a_cache_salt_comes_with_the_prompt() -> None:
    llm = in_process()
    prompt, hits = [5] * 9, []
    for salt in ("a", "a", "b"):
        salted = {"prompt_token_ids": prompt, "cache_salt": salt}
        (output,) = llm.generate([salted], params(1), use_tqdm=False)
        hits.append(output.num_cached_tokens)
    assert hits == [0, 8, 0]
    with pytest.raises(ValidationError, match="cache_salt"):
        llm.generate({"prompt": "a", "cache_salt": 5}, use_tqdm=False)


def test_fault_50_a_second_generate_gets_its_own_results(llm) -> None:
    first = llm.generate([[5], [6]], params(), use_tqdm=False)
    second = llm.generate([[7], [8], [9]], params(), use_tqdm=False)
    assert [o.outputs[0].token_ids for o in first] == [expected_tokens([t], 6) for t in (5, 6)]
    assert [o.outputs[0].token_ids for o in second] == [expected_tokens([t], 6) for t in (7, 8, 9)]


def test_a_bad_prompt_among_good_ones_runs_none_and_leaves_the_engine_usable(llm) -> None:
    with pytest.raises(ValidationError, match="empty"):
        llm.generate([[5], [], [6]], params(), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    (output,) = llm.generate([[5]], params(), use_tqdm=False)
    assert output.outputs[0].token_ids == expected_tokens([5], 6)


def test_counts_that_do_not_match_are_refused(llm) -> None:
    with pytest.raises(ValidationError, match="sampling_params has 2 entries for 3 prompts"):
        llm.generate([[5], [6], [7]], [params(), params()], use_tqdm=False)
    with pytest.raises(ValidationError, match="sampling_params has 0 entries for 1 prompts"):
        llm.generate([[5]], [], use_tqdm=False)
    with pytest.raises(ValidationError, match=r"must be SamplingParams or a list of them, not .* \(dict\)"):
        llm.generate([[5]], [{"max_tokens": 5}], use_tqdm=False)
    with pytest.raises(ValidationError, match="priority has 1 entries for 2 prompts"):
        llm.generate([[5], [6]], params(), priority=[1], use_tqdm=False)


def test_n_completions_of_each_prompt(llm) -> None:
    outputs = llm.generate([[5], [6]], params(3, n=2), use_tqdm=False)
    assert [[c.index for c in o.outputs] for o in outputs] == [[0, 1], [0, 1]]
    assert [c.token_ids for c in outputs[1].outputs] == [expected_tokens([6], 3)] * 2


def test_stop_strings_end_requests_in_the_core_too(llm) -> None:
    text = TOKENIZER.decode(expected_tokens([5], 40))
    stop = text[10:12]
    (output,) = llm.generate([[5]], params(100, stop=[stop]), use_tqdm=False)
    assert output.outputs[0].text == text[: text.find(stop)]
    assert output.outputs[0].stop_reason == stop
    llm.generate([[6]], params(1), use_tqdm=False)
    assert list(llm.llm_engine.engine_core.call_utility("get_request_counts")) == [0, 0]


def test_a_full_queue_raises_its_own_error() -> None:
    llm = in_process(max_num_seqs=1, max_num_queued_reqs=2)
    with pytest.raises(QueueFullError, match="Try again later"):
        llm.generate([[5]] * 5, params(), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert len(llm.generate([[5]] * 2, params(), use_tqdm=False)) == 2


@pytest.mark.parametrize("when", [0, 3, 9])
def test_ctrl_c_leaves_the_engine_usable(when: int) -> None:
    llm = in_process(max_num_seqs=2, async_scheduling=True)
    core = llm.llm_engine.engine_core.core
    schedule = core.scheduler.schedule
    calls = itertools.count()

    def interrupted_schedule():
        if next(calls) == when:
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of a step
        return schedule()

    core.scheduler.schedule = interrupted_schedule
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5] * 9, [6], [7]], params(), use_tqdm=False)
    core.scheduler.check_invariants()
    outputs = llm.generate([[8], [9]], params(), use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [expected_tokens([t], 6) for t in (8, 9)]
    assert core.scheduler.kv_cache_manager.usage == 0


@pytest.mark.parametrize("when", range(4))
def test_ctrl_c_in_a_step_loses_nothing_for_whoever_goes_on(when: int) -> None:
    engine = in_process().llm_engine
    execute, calls = engine.engine_core.core.executor._run, itertools.count()

    def interrupted(step):
        if next(calls) == when:
            os.kill(os.getpid(), signal.SIGINT)
        return execute(step)

    engine.engine_core.core.executor._run = interrupted
    engine.add_request("r", [5], params(4, output_kind=DELTA))
    tokens, num_interruptions = [], 0
    for _ in range(6):
        try:
            tokens += [token for output in engine.step() for token in output.outputs[0].token_ids]
        except KeyboardInterrupt:
            num_interruptions += 1
    assert (tokens, num_interruptions) == (expected_tokens([5], 4), 1)
    assert not engine.has_unfinished_requests()


def test_a_step_that_fails_is_the_end_even_if_ctrl_c_comes_in_it() -> None:
    client = in_process().llm_engine.engine_core

    def failing_step():
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("blocks half allocated")

    client.core.step = failing_step
    with pytest.raises(KeyboardInterrupt):
        client.get_output()
    with pytest.raises(EngineDeadError, match="blocks half allocated"):
        client.get_output()


def test_ctrl_c_between_steps_leaves_both_kinds_of_engine_usable(llm) -> None:
    step, calls = llm.llm_engine.step, itertools.count()

    def interrupted_step():
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step()

    llm.llm_engine.step = interrupted_step
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5] * 9, [6], [7], [8]], params(100), use_tqdm=False)
    (output,) = llm.generate([[8]], params(), use_tqdm=False)
    assert output.outputs[0].token_ids == expected_tokens([8], 6)
    assert list(llm.llm_engine.engine_core.call_utility("get_request_counts")) == [0, 0]


def test_generate_counts_and_returns_its_own_requests_only(llm) -> None:
    """Whoever drives the engine beside it has requests there, too."""
    llm.llm_engine.add_request("another's", [5], params(2))
    results = llm.generate([[6], [7]], [params(4), params(9)], use_tqdm=False)
    assert [r.outputs[0].token_ids for r in results] == [expected_tokens([6], 4), expected_tokens([7], 9)]


def test_the_progress_bar_counts_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    in_process().generate([[5], [6], [7]], params())
    assert "3/3" in capsys.readouterr().err


def test_a_request_id_in_use_is_refused() -> None:
    engine = in_process().llm_engine
    engine.add_request("r", [5], params())
    for n in (1, 2):
        with pytest.raises(ValidationError, match="'r' is in use"):
            engine.add_request("r", [6], params(n=n))
    engine.add_request("s", [5], params(n=2))
    with pytest.raises(ValidationError, match="'1_s' is in use"):
        engine.add_request("1_s", [5], params())


def test_an_id_may_be_used_again_at_once(llm) -> None:
    """Whatever the core has sent of the request before it, or will have before it learns of its end."""
    engine = llm.llm_engine
    for i in range(20):
        engine.add_request("r", [5], params(100))
        engine.step()
        engine.abort_request(["r"])
        engine.add_request("r", [7 + i], params(output_kind=RequestOutputKind.FINAL_ONLY))
        outputs = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
        assert [o.outputs[0].token_ids for o in outputs] == [expected_tokens([7 + i], 6)]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_request_that_cannot_be_added_leaves_nothing_behind(llm, failing: int) -> None:
    """Whatever goes wrong on the way to the core, and whichever completion of the request it hits."""
    engine, calls = llm.llm_engine, itertools.count()
    add_request = engine.engine_core.add_request

    def failing_add_request(request) -> None:
        if next(calls) == failing:
            raise OverflowError("a number that cannot be sent")
        add_request(request)

    engine.engine_core.add_request = failing_add_request
    with pytest.raises(OverflowError):
        engine.add_request("r", [5], params(100, n=2))
    assert not engine.has_unfinished_requests()
    assert list(engine.engine_core.call_utility("get_request_counts")) == [0, 0]
    engine.add_request("r", [5], params())  # the id is free


# ----------------------------------------------------------------------------------------------------- async


@pytest.fixture
async def async_llm():
    config = make_config(max_num_seqs=4)
    client = AsyncMPClient(build_scripted_core, config)
    llm = AsyncLLM(config, TOKENIZER, client, StatLoggerManager.create(config, client.ready))
    yield llm
    llm.shutdown()


async def collect(llm: AsyncLLM, prompt, request_id: str, **more):
    outputs = [o async for o in llm.generate(prompt, params(output_kind=DELTA, **more), request_id)]
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    return [token for o in outputs for token in o.outputs[0].token_ids]


async def counts(llm: AsyncLLM) -> list[int]:
    return await llm.engine_core.call_utility_async("get_request_counts")


async def test_many_at_once_each_gets_its_own(async_llm) -> None:
    prompts = [list(range(3, 5 + i)) for i in range(20)]
    results = await asyncio.gather(*(collect(async_llm, p, f"r{i}") for i, p in enumerate(prompts)))
    assert results == [expected_tokens(p, 6) for p in prompts]
    assert async_llm.num_unfinished_requests() == 0


async def test_bad_requests_raise_for_their_caller_only(async_llm) -> None:
    good = asyncio.create_task(collect(async_llm, [5], "good", max_tokens=60))
    with pytest.raises(ValidationError, match="empty"):
        await collect(async_llm, [], "bad")
    with pytest.raises(ValidationError, match="--scheduling-policy priority"):
        async for _ in async_llm.generate([5], params(), "p", priority=1):
            pass
    assert await good == expected_tokens([5], 60)


async def test_a_request_that_cannot_be_added_is_nobodys_unfinished_request(async_llm, monkeypatch) -> None:
    running = async_llm.generate([5], params(100, output_kind=DELTA), "running")
    await anext(running)

    def add_request(request) -> None:
        raise OverflowError("a number that cannot be sent")

    with monkeypatch.context() as patch:
        patch.setattr(async_llm.engine_core, "add_request", add_request)
        with pytest.raises(OverflowError):
            await collect(async_llm, [5], "r")
        with pytest.raises(ValidationError, match="in use"):
            await collect(async_llm, [5], "running")
    assert async_llm.num_unfinished_requests() == 1  # the one that has nothing to do with it
    await running.aclose()
    assert await collect(async_llm, [5], "r") == expected_tokens([5], 6)


async def test_a_cancelled_request_is_aborted_in_the_core(async_llm) -> None:
    tasks = [asyncio.create_task(collect(async_llm, [5, i + 3], f"r{i}", max_tokens=100)) for i in range(10)]
    first = async_llm.generate([5], params(100, output_kind=DELTA), "first")
    await anext(first)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await first.aclose()
    assert async_llm.num_unfinished_requests() == 0
    assert await counts(async_llm) == [0, 0]
    assert await collect(async_llm, [7], "r0") == expected_tokens([7], 6)  # the id is free again
    assert await async_llm.reset_prefix_cache()  # nobody holds a block


async def test_clients_that_hang_up_and_come_back_under_their_id_get_their_own_tokens(async_llm) -> None:
    rng = random.Random(0)

    async def client(request_id: str) -> None:
        for _ in range(12):
            prompt = [rng.randrange(3, 250) for _ in range(rng.randint(1, 9))]
            abandoned = asyncio.create_task(collect(async_llm, prompt, request_id, max_tokens=100))
            await asyncio.sleep(rng.random() * 0.005)
            abandoned.cancel()
            await asyncio.gather(abandoned, return_exceptions=True)
            assert await collect(async_llm, prompt, request_id) == expected_tokens(prompt, 6)

    await asyncio.gather(*(client(f"r{i}") for i in range(8)))
    assert await counts(async_llm) == [0, 0]


async def test_leaving_the_loop_early_aborts(async_llm) -> None:
    async for _ in async_llm.generate([5], params(100, output_kind=DELTA), "r"):
        break
    while async_llm.num_unfinished_requests():  # the event loop closes the generator in one of its next turns
        await asyncio.sleep(0)
    assert await counts(async_llm) == [0, 0]


async def test_an_abort_from_elsewhere_ends_the_stream_with_a_last_output(async_llm) -> None:
    stream = async_llm.generate([5], params(120, output_kind=DELTA, n=2), "r")
    await anext(stream)
    async_llm.abort("r")
    last = [output async for output in stream][-1]
    assert last.finished
    assert {completion.finish_reason for completion in last.outputs} == {"abort"}
    assert await counts(async_llm) == [0, 0]


async def test_every_waiter_learns_of_the_engines_death(async_llm) -> None:
    tasks = [asyncio.create_task(collect(async_llm, [5, i + 3], f"r{i}", max_tokens=100)) for i in range(8)]
    await anext(aiter(async_llm.generate([5], params(100, output_kind=DELTA), "first")))
    os.kill(async_llm.engine_core.process_id, signal.SIGKILL)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {EngineDeadError, list}
    assert EngineDeadError in {type(result) for result in results}
    assert async_llm.errored
    assert "SIGKILL" in str(async_llm.dead_error)
    with pytest.raises(EngineDeadError):
        await collect(async_llm, [5], "late")
    with pytest.raises(EngineDeadError):
        async_llm.check_health()


async def test_a_failing_model_reaches_every_waiter(async_llm) -> None:
    await async_llm.collective_rpc("fail_next_step", ("the model broke",))
    results = await asyncio.gather(
        *(collect(async_llm, [5, i + 3], f"r{i}") for i in range(5)), return_exceptions=True
    )
    assert {type(result) for result in results} == {EngineDeadError}


async def test_who_comes_while_a_fault_of_the_front_end_ends_the_engine_is_told(
    async_llm, monkeypatch
) -> None:
    shutdown, has_come = async_llm.engine_core.shutdown, threading.Event()

    def slow_shutdown() -> None:
        has_come.wait(10)
        shutdown()

    async def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(async_llm.engine_core, "shutdown", slow_shutdown)
    monkeypatch.setattr(async_llm, "_handle_one", fail)
    with pytest.raises(EngineDeadError, match="Processing outputs failed"):
        await collect(async_llm, [5], "first")
    meanwhile = asyncio.create_task(collect(async_llm, [5], "meanwhile"))
    while not async_llm.num_unfinished_requests():
        await asyncio.sleep(0)
    has_come.set()
    with pytest.raises(EngineDeadError, match="Processing outputs failed"):
        await asyncio.wait_for(meanwhile, 10)


async def test_shutdown_wakes_every_waiter(async_llm) -> None:
    task = asyncio.create_task(collect(async_llm, [5], "r", max_tokens=100))
    stream = async_llm.generate([5], params(100, output_kind=DELTA), "first")
    await anext(stream)
    async_llm.shutdown()
    with pytest.raises(EngineDeadError):
        await task


async def test_shutdown_from_another_thread_wakes_every_waiter_and_blocks_nobody(async_llm) -> None:
    streams = [async_llm.generate([5], params(120, output_kind=DELTA), f"r{i}") for i in range(3)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    stopping = asyncio.create_task(asyncio.to_thread(async_llm.shutdown))

    async def read_on(stream) -> None:
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass

    await asyncio.gather(stopping, *(read_on(stream) for stream in streams))
    with pytest.raises(EngineDeadError):
        async_llm.add_request("late", [5], params())


async def test_metrics_add_up(async_llm) -> None:
    await asyncio.gather(*(collect(async_llm, [5] * 10, f"r{i}") for i in range(3)))
    stream = async_llm.generate([5], params(100, output_kind=DELTA), "aborted")
    await anext(stream)
    await stream.aclose()
    assert 'finished_reason="abort",model_name="scripted"} 1.0' in async_llm.metrics_text()
    await collect(async_llm, [6] * 10, "last")
    text = async_llm.metrics_text()
    label = '{engine="0",model_name="scripted"'
    assert f"vllm:prompt_tokens_total{label}}} 41.0" in text
    for reason, count in (("length", 4), ("abort", 1), ("stop", 0)):
        assert f'finished_reason="{reason}",model_name="scripted"}} {count:.1f}' in text
    assert f"vllm:num_requests_running{label}}} 0.0" in text
    assert f"vllm:time_to_first_token_seconds_count{label}}} 5.0" in text
