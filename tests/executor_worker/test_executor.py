"""An executor runs steps in order, gives every error back to the caller, and notices when a worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ConfigError, EngineDeadError, EngineTimeoutError, ValidationError
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.step import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput
from learnvllm.executor_worker.executor import Executor
from learnvllm.executor_worker.multiproc import MultiprocExecutor
from learnvllm.executor_worker.uniproc import UniProcExecutor
from learnvllm.model_layers.model import DecoderModel
from tests.executor_worker.configs import make_config
from tests.executor_worker.fake_model import FakeModel, greedy, load_fake_model, make_kv_cache_config

PROMPT = [5, 6, 7, 8, 9]
FATAL_TOKEN = 96


def first_step(prompt: list[int] = PROMPT) -> SchedulerOutput:
    new = NewRequestData("a", prompt, len(prompt), SamplingParams(temperature=0.0), (2,), ([3, 1, 2, 4],), 0)
    return SchedulerOutput(0, [new], CachedRequestData(), {"a": len(prompt)}, len(prompt))


def later_step(step_id: int) -> SchedulerOutput:
    cached = CachedRequestData(["a"], [None], [len(PROMPT) + step_id - 1])
    return SchedulerOutput(step_id, [], cached, {"a": 1}, 1)


def start(config: EngineConfig) -> Executor:
    executor = Executor.get_class(config)(config, load_fake_model)
    assert executor.determine_available_memory() > 0
    executor.initialize_from_config(make_kv_cache_config(config))
    return executor


def run_steps(executor: Executor, count: int, non_block: bool) -> list[int]:
    results = [
        executor.execute_model(first_step() if i == 0 else later_step(i), non_block=non_block)
        for i in range(count)
    ]
    outputs = [r.result(30) if isinstance(r, Future) else r for r in results]
    return [o.sampled_token_ids[0][0] for o in outputs]


@pytest.fixture(scope="module")
def multiproc() -> Iterator[MultiprocExecutor]:
    """One worker process shared by the tests that leave it healthy."""
    executor = start(make_config(backend="mp"))
    assert isinstance(executor, MultiprocExecutor)
    yield executor
    executor.shutdown()


def forget(executor: Executor) -> None:
    executor.execute_model(SchedulerOutput(9, [], CachedRequestData(), {}, 0, finished_req_ids={"a"}))


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("non_block", [False, True])
def test_uniproc_runs_steps_in_order(async_scheduling: bool, non_block: bool) -> None:
    config = make_config(async_scheduling=async_scheduling)
    executor = start(config)
    assert isinstance(executor, UniProcExecutor)
    assert run_steps(executor, 6, non_block) == greedy(PROMPT, 6, config)
    executor.shutdown()


@pytest.mark.parametrize("non_block", [False, True])
def test_multiproc_equals_uniproc(multiproc: MultiprocExecutor, non_block: bool) -> None:
    assert run_steps(multiproc, 6, non_block) == greedy(PROMPT, 6, multiproc.config)
    forget(multiproc)


def test_async_uniproc_overlaps_the_caller() -> None:
    """The caller gets its future while the step still runs."""
    executor = start(make_config(async_scheduling=True))
    assert isinstance(executor, UniProcExecutor)
    assert executor._worker is not None
    model = executor._worker.model
    entered, go_on = threading.Event(), threading.Event()
    forward = model.forward

    def slow(*args):  # type: ignore[no-untyped-def]
        entered.set()
        assert go_on.wait(30)
        return forward(*args)

    model.forward = slow  # type: ignore[method-assign]
    futures = [
        executor.execute_model(first_step(), non_block=True),
        executor.execute_model(later_step(1), True),
    ]
    assert entered.wait(30)
    assert not any(f.done() for f in futures)  # type: ignore[union-attr]
    go_on.set()
    tokens = [f.result(30).sampled_token_ids[0][0] for f in futures]  # type: ignore[union-attr]
    assert tokens == greedy(PROMPT, 2, executor.config)
    executor.shutdown()


def test_all_calls_of_async_uniproc_share_one_thread() -> None:
    executor = UniProcExecutor(make_config(async_scheduling=True), load_thread_recording_model)
    recorder = executor._worker.model  # type: ignore[union-attr]
    executor.initialize_from_config(make_kv_cache_config(executor.config))
    executor.execute_model(first_step())
    executor.execute_model(later_step(1), non_block=True).result(30)  # type: ignore[union-attr]
    assert len(recorder.threads) == 1  # type: ignore[attr-defined]
    assert threading.get_ident() not in recorder.threads  # type: ignore[attr-defined]
    executor.shutdown()


class ThreadRecordingModel(FakeModel):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.threads = {threading.get_ident()}

    def forward(self, input_ids, positions, ctx):  # type: ignore[no-untyped-def]
        self.threads.add(threading.get_ident())
        return super().forward(input_ids, positions, ctx)


def load_thread_recording_model(config: EngineConfig) -> DecoderModel:
    return ThreadRecordingModel(config)


# ----------------------------------------------------------------------------------------------------- errors


def unknown_request_step() -> SchedulerOutput:
    return SchedulerOutput(0, [], CachedRequestData(["ghost"], [None], [3]), {"ghost": 1}, 1)


def test_uniproc_gives_the_error_of_a_step_to_its_future() -> None:
    executor = start(make_config())
    future = executor.execute_model(unknown_request_step(), non_block=True)
    with pytest.raises(KeyError, match="ghost"):
        future.result(30)  # type: ignore[union-attr]
    executor.shutdown()


def test_multiproc_gives_errors_back_with_the_workers_traceback(multiproc: MultiprocExecutor) -> None:
    with pytest.raises(KeyError, match="ghost") as caught:
        multiproc.execute_model(unknown_request_step())
    notes = "".join(caught.value.__notes__)
    assert "rank 0" in notes
    assert "model_runner.py" in notes
    multiproc.check_health()  # an exception is not a death
    assert run_steps(multiproc, 2, False) == greedy(PROMPT, 2, multiproc.config)
    forget(multiproc)


def test_an_unknown_method_is_an_error_not_a_hang(multiproc: MultiprocExecutor) -> None:
    with pytest.raises(AttributeError, match="no_such_method"):
        multiproc.collective_rpc("no_such_method")


def test_ctrl_c_is_the_parents_to_handle(multiproc: MultiprocExecutor) -> None:
    """The terminal sends SIGINT to the whole process group."""
    os.kill(multiproc._workers[0].process.pid or 0, signal.SIGINT)
    assert multiproc.collective_rpc("check_health") == [multiproc._workers[0].process.pid]


def load_broken_model(config: EngineConfig) -> DecoderModel:
    raise ConfigError("this model cannot be loaded", parameter="model", value=config.model_config.model)


@pytest.mark.parametrize("backend", ["uni", "mp"])
def test_an_error_while_loading_reaches_the_caller_and_leaves_no_process(backend: str) -> None:
    before = {p.pid for p in psutil.Process().children()}
    config = make_config(backend=backend)
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        Executor.get_class(config)(config, load_broken_model)
    assert caught.value.parameter == "model"
    after = {p.pid for p in psutil.Process().children() if "resource_tracker" not in " ".join(p.cmdline())}
    assert after <= before


class TwoPartError(Exception):
    """As many libraries have them: pickled with its one message, it cannot be made again from that."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def load_model_with_an_error_of_its_own_kind(config: EngineConfig) -> DecoderModel:
    raise TwoPartError("no weights", "the file is empty")


def test_an_error_that_cannot_be_made_again_on_this_side_is_told_in_words() -> None:
    with pytest.raises(RuntimeError, match="TwoPartError: no weights: the file is empty") as caught:
        MultiprocExecutor(make_config(backend="mp"), load_model_with_an_error_of_its_own_kind)
    assert "load_model_with_an_error_of_its_own_kind" in "".join(caught.value.__notes__)


class HomeboundError(Exception):
    """Can be made again in the process it comes from only."""

    def __reduce__(self) -> tuple[object, ...]:
        return _homebound_error, (os.getpid(),)


def _homebound_error(pid: int) -> HomeboundError:
    if os.getpid() != pid:
        raise ValueError("not here")
    return HomeboundError()


def load_model_with_an_error_that_stays_at_home(config: EngineConfig) -> DecoderModel:
    raise HomeboundError


def test_an_answer_that_cannot_be_read_does_not_hang_its_caller() -> None:
    with pytest.raises(RuntimeError, match="An answer cannot be read: ValueError: not here"):
        MultiprocExecutor(make_config(backend="mp"), load_model_with_an_error_that_stays_at_home)


# ------------------------------------------------------------------------------------------- results, by rank


class TwoRankExecutor(MultiprocExecutor):
    """Two replicas of the whole model, as if tensor parallelism had size 2."""

    world_size = 2


def test_two_ranks_answer_by_rank_and_stay_in_step_until_one_is_killed() -> None:
    config = make_config(backend="mp")
    executor = TwoRankExecutor(config, load_fake_model)
    executor.initialize_from_config(make_kv_cache_config(config))
    pids = executor.collective_rpc("check_health")
    assert pids == [worker.process.pid for worker in executor._workers]
    assert len(set(pids)) == 2
    assert run_steps(executor, 5, True) == greedy(PROMPT, 5, config)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"rank 1 .* exit code -9"):
        executor.collective_rpc("check_health", timeout=30)
    executor.shutdown()
    assert not any(worker.process.is_alive() for worker in executor._workers)


# ----------------------------------------------------------------------------------------------------- deaths


def test_a_killed_worker_fails_every_waiting_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODEL_DIES_AT", str(FATAL_TOKEN))
    executor = start(make_config(backend="mp"))
    assert isinstance(executor, MultiprocExecutor)
    futures = [
        executor.execute_model(first_step([5, FATAL_TOKEN]), True),
        executor.execute_model(later_step(1), True),
    ]
    for future in futures:
        with pytest.raises(EngineDeadError, match=r"rank 0 .* exit code 7"):
            future.result(30)  # type: ignore[union-attr]
    with pytest.raises(EngineDeadError, match="exit code 7"):
        executor.check_health()
    with pytest.raises(EngineDeadError):
        executor.execute_model(first_step())
    executor.shutdown()


def test_an_idle_executor_tells_of_a_workers_death_at_once() -> None:
    executor = MultiprocExecutor(make_config(backend="mp"), load_fake_model)
    died, told_late = threading.Event(), threading.Event()
    executor.register_failure_callback(died.set)
    os.kill(executor.collective_rpc("check_health")[0], signal.SIGKILL)
    assert died.wait(30)
    executor.register_failure_callback(told_late.set)  # too late to see it happen
    assert told_late.is_set()
    errors = []
    for _ in range(2):
        with pytest.raises(EngineDeadError) as caught:
            executor.check_health()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    executor.shutdown()


def test_a_cancelled_step_is_no_error_for_whoever_comes_next(multiproc: MultiprocExecutor) -> None:
    futures = [multiproc._call("check_health", ()) for _ in range(20)]
    assert any(future.cancel() for future in reversed(futures))
    step = multiproc.execute_model(first_step(), non_block=True)
    assert isinstance(step, Future)
    step.cancel()
    assert multiproc.collective_rpc("check_health", timeout=60) == [multiproc._workers[0].process.pid]
    forget(multiproc)


def test_a_timeout_nobody_could_keep_is_refused() -> None:
    executor = UniProcExecutor(make_config(async_scheduling=False), load_fake_model)
    with pytest.raises(ValidationError, match="timeout=5"):
        executor.collective_rpc("check_health", timeout=5)
    assert executor.collective_rpc("check_health") == [os.getpid()]
    executor.shutdown()


MAIN_SCRIPT = """
from learnvllm.executor_worker.multiproc import WorkerHandle

print("the script runs", flush=True)
worker = WorkerHandle(None, 0, None)  # no __main__ guard on purpose
worker.pipe.send(("check_health", ()))
ok, _ = worker.pipe.recv()
print(ok)
worker.request_exit()
worker.stop()
"""


def test_a_worker_does_not_run_the_callers_script_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MAIN_SCRIPT)
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "the script runs\nTrue\n"), result.stderr


def test_after_shutdown_every_call_is_refused() -> None:
    executor = UniProcExecutor(make_config(), load_fake_model)
    executor.shutdown()
    executor.shutdown()
    check_refused(executor)


def check_refused(executor: Executor) -> None:
    with pytest.raises(EngineDeadError, match="shut down"):
        executor.check_health()
    with pytest.raises(EngineDeadError, match="shut down"):
        executor.collective_rpc("check_health")


def load_slow_model(config: EngineConfig) -> DecoderModel:
    class SlowModel(FakeModel):
        def forward(self, input_ids, positions, ctx):  # type: ignore[no-untyped-def]
            time.sleep(3600)

    return SlowModel(config)


def load_model_that_gives_up(config: EngineConfig) -> DecoderModel:
    class GivesUp(FakeModel):
        def forward(self, input_ids, positions, ctx):  # type: ignore[no-untyped-def]
            raise TimeoutError("a lock of its own")

    return GivesUp(config)


@pytest.mark.parametrize("kind", [UniProcExecutor, MultiprocExecutor])
def test_a_timeout_within_a_method_is_the_methods_own_error(kind: type[Executor]) -> None:
    backend = "mp" if kind is MultiprocExecutor else "uni"
    executor = kind(make_config(backend=backend), load_model_that_gives_up)
    with pytest.raises(TimeoutError, match="a lock of its own"):
        executor.collective_rpc("determine_available_memory")
    executor.shutdown()


def test_a_call_that_takes_too_long_times_out_and_shutdown_still_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("learnvllm.executor_worker.multiproc.SHUTDOWN_GRACE_S", 0.2)
    executor = MultiprocExecutor(make_config(backend="mp"), load_slow_model)
    with pytest.raises(EngineTimeoutError, match=r"determine_available_memory.*0\.2 s"):
        executor.collective_rpc("determine_available_memory", timeout=0.2)
    executor.shutdown()
    executor.shutdown()
    assert not executor._workers[0].process.is_alive()
    check_refused(executor)


def load_model_of_slow_steps(config: EngineConfig) -> DecoderModel:
    class SlowModel(FakeModel):
        def forward(self, input_ids, positions, ctx):  # type: ignore[no-untyped-def]
            time.sleep(1)
            return super().forward(input_ids, positions, ctx)

    return SlowModel(config)


def test_an_answer_that_comes_during_shutdown_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    executor = MultiprocExecutor(make_config(backend="mp"), load_model_of_slow_steps)
    waiting = executor._call("determine_available_memory", ())
    executor.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        waiting.result()
    assert not executor._workers[0].process.is_alive()
    assert not failures, "the thread that reads answers failed"


ORPHAN_SCRIPT = """
import time
from learnvllm.executor_worker.multiproc import WorkerHandle
from tests.executor_worker.configs import make_config

if __name__ == "__main__":
    print(WorkerHandle(make_config(), 0, None).process.pid, flush=True)
    time.sleep(3600)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(ORPHAN_SCRIPT)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    worker.wait(timeout=30)


def test_model_runner_output_crosses_the_process_unchanged(multiproc: MultiprocExecutor) -> None:
    output = multiproc.execute_model(first_step())
    assert isinstance(output, ModelRunnerOutput)
    assert output.req_ids == ["a"]
    assert output.forward_seconds > 0
    forget(multiproc)
