"""The engine in a process of its own: handshake, clients, errors, deaths. No process is ever left over."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import psutil
import pytest

from learnvllm.architecture.errors import (
    ConfigError,
    EngineDeadError,
    EngineTimeoutError,
    ModelLoadError,
    ServerError,
    ValidationError,
)
from learnvllm.architecture.messages import EngineCoreRequest, FinishReason
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core import engine_process, mp_client
from learnvllm.engine_core.core_client import InprocClient, SyncEngineCoreClient
from learnvllm.engine_core.mp_client import SyncMPClient
from learnvllm.engine_core.protocol import EngineCoreRequestType
from learnvllm.executor_worker.processes import start_process
from tests.engine_core.parts import (
    EOS,
    build_nothing_config_error,
    build_nothing_dies,
    build_nothing_hangs,
    build_nothing_model_error,
    build_nothing_other_error,
    build_scripted_core,
    expected_tokens,
    make_config,
)


def request(request_id: str, prompt: list[int], max_tokens: int = 8, **params) -> EngineCoreRequest:
    return EngineCoreRequest(request_id, prompt, SamplingParams(max_tokens=max_tokens, **params), [EOS])


def run(client: SyncEngineCoreClient, count: int) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    finished = 0
    while finished < count:
        for output in client.get_output().outputs:
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            finished += output.finished
    return tokens


@pytest.fixture
def client():
    client = SyncMPClient(build_scripted_core, make_config())
    yield client
    client.shutdown()
    assert not psutil.pid_exists(client.process_id)


# -------------------------------------------------------------------------------------------- the same tokens


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_arc_01_both_modes_give_the_same_outputs(async_scheduling: bool) -> None:
    config = make_config(async_scheduling=async_scheduling, max_num_batched_tokens=16)
    prompts = {f"r{i}": list(range(3 + i, 20 + 3 * i)) for i in range(6)}
    results = []
    for client in (
        InprocClient(build_scripted_core(config)),
        SyncMPClient(build_scripted_core, config),
    ):
        try:
            for request_id, prompt in prompts.items():
                client.add_request(request(request_id, prompt, logprobs=100 if request_id == "r0" else 1))
            results.append(run(client, len(prompts)))
        finally:
            client.shutdown()
    assert results[0] == results[1] == {r: expected_tokens(p, 8) for r, p in prompts.items()}


def test_eng_02_large_logprobs_arrive_over_zmq_intact(client) -> None:
    client.add_request(request("r", [5, 6], max_tokens=2, logprobs=200))
    rows = [output.new_logprobs for _ in range(2) for output in client.get_output().outputs]
    for token, lists in zip(expected_tokens([5, 6], 2), rows, strict=True):
        assert lists.token_ids.tolist() == [[token, *range(10, 210)]]
        assert lists.logprobs[0, 1:4].tolist() == [-1.0, -2.0, -3.0]


# ---------------------------------------------------------------------------------------------- the handshake


def test_eng_10_ready_tells_the_pool_and_the_configuration(client) -> None:
    ready = client.ready
    assert (ready.num_gpu_blocks, ready.block_size) == (64, 4)
    assert ready.kv_cache_tokens == 128  # 252 would fit; no request can be longer than the model allows
    assert ready.config_hash == make_config().config_hash()


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        (build_nothing_config_error, ConfigError, "block_size=5: five is right out."),
        (build_nothing_model_error, ModelLoadError, "/no/model has no config.json."),
        (build_nothing_other_error, ServerError, "OSError: the disk is full"),
        (build_nothing_dies, EngineDeadError, r"ended while starting \(exit code 7\)"),
    ],
)
def test_eng_10_what_goes_wrong_at_start_comes_across_as_what_it_is(factory, error, message) -> None:
    started = time.monotonic()
    with pytest.raises(error, match=message) as caught:
        SyncMPClient(factory, make_config(), ready_timeout_s=60)
    assert time.monotonic() - started < 30, "it waited for the time-out"
    if isinstance(caught.value, ValidationError):
        assert caught.value.parameter in ("block_size", "model")
        assert caught.value.value in (5, "/no/model")


def test_eng_10_an_engine_that_hangs_is_reported_by_name_and_killed() -> None:
    before = set(psutil.Process().children())
    with pytest.raises(EngineTimeoutError, match=r"READY of engine 0 .* is missing.*_READY_TIMEOUT_S"):
        SyncMPClient(build_nothing_hangs, make_config(), ready_timeout_s=0.5)
    assert not (set(psutil.Process().children()) - before - _resource_trackers())


def test_eng_10_the_time_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNVLLM_ENGINE_READY_TIMEOUT_S", "0.2")
    with pytest.raises(EngineTimeoutError, match=r"within 0\.2 s"):
        SyncMPClient(build_nothing_hangs, make_config())


def _resource_trackers() -> set[psutil.Process]:
    """multiprocessing starts one helper per process, which stays."""
    return {c for c in psutil.Process().children() if "resource_tracker" in " ".join(c.cmdline())}


# -------------------------------------------------------------------------------------- requests, RPC, aborts


def test_bad_messages_to_the_core_hurt_nobody(client) -> None:
    client.add_request(request("good", [5, 6]))
    client.add_request(request("empty", []))
    client.add_request(request("outside", [10**6]))
    client._send(EngineCoreRequestType.ADD, ["unreadable", "not token ids", {}])
    client._engine.send(b"\x09", b"no such kind")
    client._engine.send(EngineCoreRequestType.ABORT.value, b"\xc1 not msgpack")
    client.add_request(request("good2", [5, 7]))
    reasons, tokens = {}, {}
    while len(reasons) < 5:
        for output in client.get_output().outputs:
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finished:
                reasons[output.request_id] = output.finish_reason
                if output.finish_reason is FinishReason.ERROR:
                    assert output.error.kind == "ValidationError"
    assert [r for r, reason in reasons.items() if reason is FinishReason.LENGTH] == ["good", "good2"]
    assert tokens["good2"] == expected_tokens([5, 7], 8)


def test_eng_05_utility_calls_return_and_raise_across_the_process(client) -> None:
    assert client.call_utility("reset_prefix_cache") is True
    assert client.call_utility("collective_rpc", "echo", [1, "two", [3.5]]) == [[1, "two", [3.5]]]
    with pytest.raises(ServerError, match="ValueError: not today"):
        client.call_utility("collective_rpc", "fail", ["not today"])
    with pytest.raises(ValidationError, match="utility method 'exec' does not exist"):
        client.call_utility("exec", "1")
    for unsendable in ("an_object", "a_large_number", "a_lone_surrogate"):
        with pytest.raises(ValidationError, match="The result cannot be sent"):
            client.call_utility("collective_rpc", unsendable)
    with pytest.raises(ConfigError) as caught:
        client.call_utility("collective_rpc", "fail_with_a_lone_surrogate")
    assert (str(caught.value), caught.value.value) == ("?", str(2**70))
    with pytest.raises(OverflowError):
        client.submit_utility("collective_rpc", "echo", [2**70])
    assert not client._calls  # nobody waits for what was never sent
    futures = [client.submit_utility("collective_rpc", "echo", [i]) for i in range(20)]
    assert [future.result(10) for future in futures] == [[[i]] for i in range(20)]


def test_eng_13_an_abort_right_behind_its_request_is_not_lost(client) -> None:
    for i in range(20):
        client.add_request(request(f"r{i}", [5, 6, i + 3], max_tokens=100))
        client.abort_requests([f"r{i}"])
    client.add_request(request("last", [5, 6], max_tokens=2))
    while not any(o.request_id == "last" and o.finished for o in client.get_output().outputs):
        pass
    assert client.call_utility("get_request_counts") == [0, 0]


# ---------------------------------------------------------------------------------------------------- deaths


def test_a_failing_model_ends_every_waiting_request_and_call(client) -> None:
    client.add_request(request("r", [5, 6], max_tokens=100))
    client.call_utility("collective_rpc", "fail_next_step", ["the model broke"])
    with pytest.raises(EngineDeadError, match="failed and has stopped"):
        run(client, 1)
    with pytest.raises(EngineDeadError):
        client.add_request(request("s", [5]))
    with pytest.raises(EngineDeadError):
        client.submit_utility("reset_prefix_cache")
    client._engine.process.join(10)
    assert client._engine.process.exitcode == 1


def test_a_killed_engine_is_noticed_by_who_waits(client) -> None:
    future = client.submit_utility("reset_prefix_cache")
    assert future.result(10) is True
    os.kill(client.process_id, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
        client.get_output()
    errors = []
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="SIGKILL") as caught:
            client.check_health()
        errors.append(caught.value)
    assert errors[0] is not errors[1]  # or each would grow the other's traceback


def test_no_files_are_left_whether_the_engine_starts_or_not(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    running = SyncMPClient(build_scripted_core, make_config())
    assert not list(tmp_path.iterdir())  # so none can be left, however the processes end
    running.shutdown()
    with pytest.raises(ConfigError):
        SyncMPClient(build_nothing_config_error, make_config())
    with pytest.raises((pickle.PicklingError, AttributeError)):  # the process cannot even be started
        SyncMPClient(lambda config: build_scripted_core(config), make_config())
    assert not list(tmp_path.iterdir())


def test_ctrl_c_in_the_terminal_does_not_reach_the_engine(client) -> None:
    client.add_request(request("r", [5, 6], max_tokens=100))
    os.kill(client.process_id, signal.SIGINT)
    assert run(client, 1) == {"r": expected_tokens([5, 6], 100)}


def test_ctrl_c_while_the_engine_process_imports_does_not_reach_it(monkeypatch) -> None:
    def start_and_interrupt(process, *functions) -> None:
        start_process(process, *functions)
        os.kill(process.pid, signal.SIGINT)

    monkeypatch.setattr(engine_process, "start_process", start_and_interrupt)
    client = SyncMPClient(build_scripted_core, make_config())
    client.shutdown()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # here it is as before


def test_ctrl_c_does_not_reach_the_first_process_of_all_either() -> None:
    """Before it Python starts the resource tracker, which leaves SIGINT unblocked."""
    program = (
        "import multiprocessing, os, signal\n"
        "from learnvllm.executor_worker.processes import start_process\n"
        "process = multiprocessing.get_context('spawn').Process(target=os.getpid)\n"
        "start_process(process)\n"
        "os.kill(process.pid, signal.SIGINT)\n"
        "process.join()\n"
        "raise SystemExit(process.exitcode)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_ctrl_c_while_a_process_is_started_leaves_none_behind(monkeypatch) -> None:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    start = type(process).start

    def interrupted_start(process) -> None:
        start(process)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(type(process), "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        start_process(process)
    process.join(20)
    assert process.exitcode == -signal.SIGKILL


def test_sigterm_lets_the_engine_finish_what_runs(client) -> None:
    client.add_request(request("r", [5, 6], max_tokens=100))
    assert client.get_output().outputs
    os.kill(client.process_id, signal.SIGTERM)
    run(client, 1)
    client._engine.process.join(10)
    assert client._engine.process.exitcode == 0


def test_shutdown_wakes_a_waiting_thread(client) -> None:
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            client.get_output()
        except EngineDeadError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    client.shutdown()
    thread.join(10)
    assert [str(error) for error in errors] == ["The engine has been shut down."]
    assert client._engine.process.exitcode == 0
    client.shutdown()  # a second time is fine


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_output_cannot_be_read_ends_in_its_own_way(monkeypatch) -> None:
    def unreadable(*_):
        raise ValueError("no msgpack")

    client = SyncMPClient(build_scripted_core, make_config())
    monkeypatch.setattr(mp_client.MsgpackDecoder, "decode", unreadable)
    client.add_request(request("r", [5, 6]))
    with pytest.raises(EngineDeadError, match="cannot be read: ValueError: no msgpack"):
        client.get_output()
    client.shutdown()
    assert client._engine.process.exitcode == 0


SCRIPT = """
import os, sys
from learnvllm.engine_core.mp_client import SyncMPClient
from tests.engine_core.parts import build_scripted_core, make_config

client = SyncMPClient(build_scripted_core, make_config())  # no __main__ guard on purpose
print(client.process_id, "torch" in sys.modules, flush=True)
{rest}
"""


STEP_FAILS = """
from learnvllm.architecture.messages import EngineCoreRequest
from learnvllm.architecture.sampling_params import SamplingParams
client.call_utility("collective_rpc", "fail_next_step", ["from a step", True])
client.add_request(EngineCoreRequest("r", [5], SamplingParams()))
client._engine.process.join(30)
print(client._engine.process.exitcode)
"""


def test_a_client_error_from_a_step_is_logged_as_any_other() -> None:
    """Only one from starting up has been told to somebody who can do something about it."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(rest=STEP_FAILS)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert result.stdout.splitlines()[-1] == "1"
    assert "The engine cannot go on." in result.stderr
    assert "ConfigError: from a step" in result.stderr


def test_a_step_that_leaves_the_process_is_logged_as_any_other() -> None:
    """sys.exit in a learner's method: the process would end without a word."""
    fail, leave = '"fail_next_step", ["from a step", True]', '"exit_in_next_step"'
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(rest=STEP_FAILS.replace(fail, leave))],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert result.stdout.splitlines()[-1] == "1"
    assert "The engine cannot go on." in result.stderr
    assert "A step called sys.exit(3)." in result.stderr


def start_script(rest: str) -> tuple[subprocess.Popen, int]:
    code = SCRIPT.format(rest=textwrap.dedent(rest))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert process.stdout is not None
    pid, torch_loaded = process.stdout.readline().split()
    assert torch_loaded == "False", "the front end has loaded torch"
    return process, int(pid)


def wait_until_gone(pid: int, seconds: float = 15.0) -> bool:
    try:
        psutil.Process(pid).wait(seconds)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_no_orphan_is_left_when_the_front_end_is_killed() -> None:
    process, engine_pid = start_script("sys.stdin.read()")
    process.kill()
    process.wait()
    assert wait_until_gone(engine_pid)


def test_no_orphan_is_left_when_the_front_end_forgets_to_shut_down() -> None:
    process, engine_pid = start_script("")
    assert process.wait(30) == 0
    assert wait_until_gone(engine_pid)


def test_a_script_file_needs_no_main_guard(tmp_path, repository) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(rest="client.shutdown()"))
    result = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(repository)},
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1  # the script ran once, not once more in the child
