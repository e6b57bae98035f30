"""The loop itself, step by step in one process, over a scripted executor."""

import copy
import json

import pytest
import zmq

from learnvllm.architecture.errors import (
    ConfigError,
    EngineDeadError,
    QueueFullError,
    ServerError,
    ValidationError,
)
from learnvllm.architecture.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
)
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.tracing import RecordingTracer
from learnvllm.engine_core.core import EngineCore
from learnvllm.engine_core.core_client import InprocClient
from learnvllm.engine_core.core_proc import EngineCoreProc
from learnvllm.engine_core.protocol import UtilityCall
from learnvllm.engine_core.serial import MsgpackDecoder, MsgpackEncoder
from tests.engine_core.parts import (
    EOS,
    VOCAB_SIZE,
    ScriptedExecutor,
    build_scripted_core,
    expected_tokens,
    make_config,
)

ASYNC = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


@pytest.fixture
def make_core():
    cores: list[EngineCore] = []

    def make(tracer=None, **config) -> EngineCore:
        cores.append(build_scripted_core(make_config(**config), tracer))
        return cores[-1]

    yield make
    for core in cores:
        core.shutdown()


def request(request_id: str, prompt: list[int], max_tokens: int = 8, **params) -> EngineCoreRequest:
    return EngineCoreRequest(request_id, prompt, SamplingParams(max_tokens=max_tokens, **params), [EOS])


def run(core: EngineCore, check: bool = True) -> dict[str, list[int]]:
    """Step until idle; tokens by request, finish reasons checked to come exactly once."""
    tokens: dict[str, list[int]] = {}
    finished: set[str] = set()
    while core.has_work():
        outputs, _ = core.step()
        for output in outputs[0].outputs if outputs else []:
            assert output.request_id not in finished
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finished:
                finished.add(output.request_id)
        if check:
            core.scheduler.check_invariants()
    assert finished == set(tokens)
    return tokens


PROMPTS = {f"r{i}": list(range(3 + i, 3 + i + length)) for i, length in enumerate([1, 4, 5, 17, 40])}


@ASYNC
@pytest.mark.parametrize("budget", [3, 16, 512])
def test_eng_01_any_batch_gives_what_one_request_at_a_time_gives(make_core, async_scheduling, budget) -> None:
    core = make_core(async_scheduling=async_scheduling, max_num_batched_tokens=budget)
    for request_id, prompt in PROMPTS.items():
        core.add_request(request(request_id, prompt))
    assert run(core) == {request_id: expected_tokens(prompt, 8) for request_id, prompt in PROMPTS.items()}


@ASYNC
def test_fault_13_preemption_changes_no_tokens(make_core, async_scheduling) -> None:
    tracer = RecordingTracer()
    core = make_core(tracer, async_scheduling=async_scheduling, num_blocks=14, block_size=4)
    for request_id, prompt in PROMPTS.items():
        core.add_request(request(request_id, prompt, max_tokens=10))
    assert run(core) == {request_id: expected_tokens(prompt, 10) for request_id, prompt in PROMPTS.items()}
    assert any(event.preempted for event in tracer.events)


@ASYNC
def test_an_idle_core_does_nothing(make_core, async_scheduling) -> None:
    core = make_core(async_scheduling=async_scheduling)
    assert not core.has_work()
    assert core.step() == ({}, False)
    assert core.executor.num_steps == 0


@ASYNC
def test_steps_that_have_nothing_for_the_workers_are_not_executed(make_core, async_scheduling) -> None:
    core = make_core(async_scheduling=async_scheduling)
    core.add_request(request("r", [5, 6], max_tokens=3))
    run(core)
    assert core.executor.num_steps == 4  # three tokens, and one step to tell the workers that it is over


@ASYNC
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_fault_10_max_tokens_is_exact(make_core, async_scheduling, max_tokens) -> None:
    core = make_core(async_scheduling=async_scheduling)
    for request_id, prompt in PROMPTS.items():
        core.add_request(request(request_id, prompt, max_tokens))
    assert run(core) == {request_id: expected_tokens(p, max_tokens) for request_id, p in PROMPTS.items()}


@ASYNC
def test_fault_11_a_request_ends_at_max_model_len(make_core, async_scheduling) -> None:
    core = make_core(async_scheduling=async_scheduling, max_model_len=32)
    core.add_request(request("r", [5] * 31, max_tokens=1))
    core.add_request(request("s", [6] * 20, max_tokens=100))
    assert run(core) == {"r": expected_tokens([5] * 31, 1), "s": expected_tokens([6] * 20, 12)}


# --------------------------------------------------------------------------------------------- one by one


def test_deterministic_single_steps(make_core) -> None:
    core = make_core(max_num_batched_tokens=4)
    core.add_request(request("r", [5, 6, 7, 8, 9, 10], max_tokens=2))
    counts = []
    for _ in range(3):
        outputs, executed = core.step()
        counts.append((executed, [len(o.new_token_ids) for o in outputs[0].outputs]))
    assert counts == [(True, []), (True, [1]), (True, [1])]
    assert core.get_request_counts() == (0, 0)


def test_bad_requests_are_refused_and_hurt_nobody(make_core) -> None:
    core = make_core(max_num_queued_reqs=1, max_num_seqs=1)
    core.add_request(request("good", [5, 6]))
    for bad in (
        request("empty", []),
        request("vocabulary", [5, VOCAB_SIZE]),
        request("negative", [-1]),
        request("too-long", [5] * 500),
        request("no-max-tokens", [5], max_tokens=None),
        request("int32", [5], top_k=2**40),
        request("stop", [5], stop_token_ids=[VOCAB_SIZE]),
        request("logprobs", [5], logprobs=VOCAB_SIZE + 1),
        request("prompt-logprobs", [5], prompt_logprobs=VOCAB_SIZE + 1),
        EngineCoreRequest("eos", [5], SamplingParams(), [VOCAB_SIZE]),
    ):
        with pytest.raises(ValidationError):
            core.add_request(bad)
    with pytest.raises(QueueFullError):
        core.add_request(request("one-too-many", [5]))
    assert run(core) == {"good": expected_tokens([5, 6], 8)}


def test_fault_1_a_request_alone_in_the_pool_ends_when_the_pool_does(make_core) -> None:
    core = make_core(num_blocks=3, block_size=4)  # two blocks, eight tokens
    core.add_request(request("fills-the-pool", [5] * 8, max_tokens=4))
    outputs = []
    while core.has_work():
        outputs += core.step()[0][0].outputs
        core.scheduler.check_invariants()
    assert [(o.new_token_ids, o.finish_reason) for o in outputs] == [
        (expected_tokens([5] * 8, 1), FinishReason.LENGTH)
    ]
    with pytest.raises(ValidationError, match="KV cache holds 8"):
        core.add_request(request("never-fits", [5] * 9))


def test_ready_tells_what_the_scheduler_will_refuse(make_core) -> None:
    core = make_core(num_blocks=9, block_size=4)
    ready = core.ready_message()
    assert (ready.num_gpu_blocks, ready.block_size, ready.kv_cache_tokens) == (9, 4, 32)
    assert ready.config_hash == core.config.config_hash()
    core.add_request(request("fits", [5] * 32))
    with pytest.raises(ValidationError):
        core.add_request(request("does-not", [5] * 33))


# ------------------------------------------------------------------------------------------------- aborts


@ASYNC
def test_eng_13_aborts_at_any_moment_leak_nothing(make_core, async_scheduling) -> None:
    for steps_before in range(8):
        core = make_core(async_scheduling=async_scheduling, max_num_seqs=2, max_num_batched_tokens=8)
        for request_id, prompt in PROMPTS.items():
            core.add_request(request(request_id, prompt))
        for _ in range(steps_before):
            core.step()
        core.abort_requests(["r0", "r2", "r4", "unknown"])
        core.scheduler.check_invariants()
        tokens = run(core)
        assert set(tokens) >= {"r1", "r3"} or steps_before > 4
        for request_id, got in tokens.items():
            assert expected_tokens(PROMPTS[request_id], 8)[-len(got) :] == got
        assert core.get_request_counts() == (0, 0)
        assert core.scheduler.kv_cache_manager.usage == 0
        assert core.executor.rows == {}


@ASYNC
def test_a_request_aborted_while_its_step_runs_gets_no_token(make_core, async_scheduling) -> None:
    """The order that breaks mini-sglang (5.2 B, C): the abort comes between the step and its result."""
    core = make_core(async_scheduling=async_scheduling)
    core.add_request(request("a", [5, 6, 7]))
    core.add_request(request("b", [5, 6, 8]))
    pending = [["a"]]
    core.take_aborts = lambda: pending.pop() if pending else []
    assert run(core) == {"b": expected_tokens([5, 6, 8], 8)}
    assert core.scheduler.kv_cache_manager.usage == 0


def test_an_id_can_be_used_again_at_once(make_core) -> None:
    core = make_core(async_scheduling=True)
    core.add_request(request("r", [5, 6, 7]))
    core.step()
    core.abort_requests(["r"])
    core.add_request(request("r", [9, 8]))
    assert run(core) == {"r": expected_tokens([9, 8], 8)}


def test_an_abort_never_hits_a_later_request_of_the_same_id(make_core) -> None:
    """Aborts reach the process twice, so that a running step hears of them; the second must find nothing."""
    core = make_core()
    proc = EngineCoreProc(core, input_socket=None, output_socket=None)
    core.add_request(request("r", [5, 6, 7]))
    core.step()
    proc._aborts.put(["r"])  # what the input thread does with an abort, then an add
    proc.input_queue.put(["r"])
    proc.input_queue.put(core.preprocess_request(request("r", [9, 8])))
    assert proc._process_inputs()
    assert run(core) == {"r": expected_tokens([9, 8], 8)}


# ------------------------------------------------------------------------------- the loop and its threads


def make_proc(core: EngineCore, input_socket=None, output_socket=None) -> EngineCoreProc:
    return EngineCoreProc(core, input_socket, output_socket)


def test_a_step_that_cannot_be_sent_fails_its_requests_and_no_others(make_core) -> None:
    proc = make_proc(make_core())
    outputs = EngineCoreOutputs(outputs=[EngineCoreOutput("r", [2**70])])
    (failed,) = proc._replace_unsendable(outputs, OverflowError("too large")).outputs
    assert (failed.request_id, failed.finish_reason) == ("r", FinishReason.ERROR)
    assert "too large" in failed.error.message
    assert proc.input_queue.get() == ["r"]  # aborted in the core


def test_a_request_that_cannot_be_taken_in_is_answered_whatever_went_wrong(make_core, monkeypatch) -> None:
    core = make_core()
    proc = make_proc(core)

    def fail(request) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(core, "preprocess_request", fail)
    frames = MsgpackEncoder().encode(request("r", [5]))
    proc._receive_request(MsgpackDecoder(EngineCoreRequest), frames)
    (refused,) = proc._output_queue.get().outputs
    assert (refused.request_id, refused.finish_reason) == ("r", FinishReason.ERROR)


class BrokenSocket:
    def recv_multipart(self, copy: bool) -> None:
        raise zmq.ContextTerminated

    def send(self, *args, **kwargs) -> None:
        raise zmq.ZMQError(zmq.ENOTSOCK)

    def close(self, linger: int) -> None: ...


def test_an_engine_that_can_send_nothing_any_more_ends_with_an_error(make_core) -> None:
    proc = make_proc(make_core(), BrokenSocket(), BrokenSocket())
    proc.input_queue.put(UtilityCall(0, "get_request_counts", []))
    with pytest.raises(ServerError, match="outputs cannot be sent"):
        proc.run()


def test_an_idle_engine_ends_when_a_worker_dies(make_core, monkeypatch) -> None:
    core, callbacks = make_core(), []
    monkeypatch.setattr(core.executor, "register_failure_callback", callbacks.append)
    proc = make_proc(core)

    def dead() -> None:
        raise EngineDeadError("Worker 0 died.")

    monkeypatch.setattr(core.executor, "check_health", dead)
    callbacks[0]()
    with pytest.raises(EngineDeadError, match="Worker 0 died"):
        proc._process_inputs()


# --------------------------------------------------------------------------------------- async scheduling


def test_eng_14_the_next_step_is_scheduled_while_this_one_runs(make_core) -> None:
    core = make_core(async_scheduling=True)
    executor: ScriptedExecutor = core.executor
    executor.gate.clear()  # the device is busy for as long as we say
    core.add_request(request("r", [5, 6, 7]))
    assert core.step() == ({}, True)
    executor.started.acquire()
    assert executor.num_steps == 0
    core.scheduler.check_invariants()
    assert core.scheduler.requests["r"].num_output_placeholders == 1
    executor.gate.set()
    assert run(core) == {"r": expected_tokens([5, 6, 7], 8)}


def test_eng_14_a_step_in_flight_shares_nothing_with_the_scheduler(make_core) -> None:
    """The workers read a step while the next one is scheduled: a list they shared would change under them."""
    core = make_core(async_scheduling=True, num_blocks=14, block_size=4)
    execute, steps = core.executor._execute, []

    def execute_and_keep(step):
        steps.append((copy.deepcopy(step), step))
        return execute(step)

    core.executor._execute = execute_and_keep
    for request_id, prompt in PROMPTS.items():
        core.add_request(request(request_id, prompt, max_tokens=10))
    run(core)
    assert any(step.preempted_req_ids for step, _ in steps)
    for as_sent, as_left_behind in steps:
        assert as_left_behind == as_sent


def test_eng_14_never_more_than_two_steps_are_in_flight(make_core) -> None:
    core = make_core(async_scheduling=True)
    for request_id, prompt in PROMPTS.items():
        core.add_request(request(request_id, prompt))
    while core.has_work():
        core.step()
        assert len(core._in_flight) <= 2


def test_eng_14_no_tokens_are_computed_beyond_the_end(make_core) -> None:
    core = make_core(async_scheduling=True)
    core.add_request(request("r", [5, 6, 7], max_tokens=4))
    assert run(core) == {"r": expected_tokens([5, 6, 7], 4)}
    assert core.executor.num_steps <= 5


# ------------------------------------------------------------------------------------- tracing, utilities


@ASYNC
def test_every_step_is_one_event_with_its_phases(make_core, async_scheduling, tmp_path) -> None:
    trace = tmp_path / "trace.json"
    core = make_core(async_scheduling=async_scheduling, trace_file=trace)
    core.add_request(request("r", [5, 6, 7], max_tokens=3))
    run(core)
    events = core._tracer.events
    assert [event.scheduled[0].num_tokens for event in events] == [3, 1, 1]
    assert [event.scheduled[0].sampled for event in events] == [[t] for t in expected_tokens([5, 6, 7], 3)]
    for event in events:
        assert {"schedule", "execute", "forward", "update"} <= set(event.phases)
        assert all(seconds >= 0 for seconds in event.phases.values())
    core.shutdown()
    names = {row["name"] for row in json.loads(trace.read_text())["traceEvents"]}
    assert {"step 0", "schedule", "prefill", "decode", "free blocks"} <= names


def test_a_trace_file_that_cannot_be_made_is_refused_before_anything_is_loaded(make_core, tmp_path) -> None:
    for path in (tmp_path / "missing" / "trace.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be written") as caught:
            make_core(trace_file=path)
        assert caught.value.parameter == "trace_file"
    assert not list(tmp_path.iterdir())


def test_a_trace_of_before_is_kept_until_there_is_a_new_one(make_core, tmp_path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("before")
    make_core(trace_file=trace)
    assert trace.read_text() == "before"


def test_a_trace_that_cannot_be_written_at_the_end_is_a_line_in_the_log(make_core, tmp_path, caplog) -> None:
    (tmp_path / "folder").mkdir()
    core = make_core(trace_file=tmp_path / "folder" / "trace.json")
    (tmp_path / "folder").rmdir()
    core.shutdown()
    assert "The trace is lost" in caplog.text


def test_eng_05_utilities_reach_the_workers_and_errors_come_back(make_core) -> None:
    core = make_core()
    assert core.call_utility("collective_rpc", ["echo", [1, "two"]]) == [[1, "two"]]
    assert core.call_utility("reset_prefix_cache", []) is True
    with pytest.raises(ValueError, match="worker says no"):
        core.call_utility("collective_rpc", ["fail", ["worker says no"]])
    with pytest.raises(ValidationError, match="utility method 'shutdown' does not exist"):
        core.call_utility("shutdown", [])


# ------------------------------------------------------------------------------------- the in-process client


def test_in_process_a_failing_model_ends_every_request_with_a_clear_error(make_core) -> None:
    core = make_core()
    client = InprocClient(core)
    client.add_request(request("r", [5, 6]))
    core.executor.fail_with = RuntimeError("the model broke")
    with pytest.raises(EngineDeadError, match="the model broke"):
        client.get_output()
    for call in (client.get_output, client.check_health, lambda: client.add_request(request("s", [5]))):
        with pytest.raises(EngineDeadError):
            call()


def test_in_process_a_refused_request_is_an_output(make_core) -> None:
    client = InprocClient(make_core())
    client.add_request(request("r", []))
    (output,) = client.get_output().outputs
    assert output.finish_reason is FinishReason.ERROR
    assert output.error is not None
    assert output.error.kind == "ValidationError"
