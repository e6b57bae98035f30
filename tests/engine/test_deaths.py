"""Three processes deep, whoever dies: who waits gets an error, and nobody is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from learnvllm.architecture.errors import EngineDeadError
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.assembly import build_llm_engine
from tests.engine.engines import make_config

ENDLESS = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)


def workers_of(engine_pid: int) -> list[psutil.Process]:
    """The engine's children, but for multiprocessing's resource tracker."""
    children = psutil.Process(engine_pid).children(recursive=True)
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


def assert_all_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive


@pytest.fixture
def engine(tiny_model):
    engine = build_llm_engine(make_config(tiny_model("llama").directory, executor="mp"), multiprocess=True)
    yield engine
    engine.shutdown()


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_a_killed_process_ends_every_request_and_every_other_process(engine, victim: str) -> None:
    core = psutil.Process(engine.engine_core.process_id)
    processes = [core, *workers_of(core.pid)]
    assert len(processes) == 2
    engine.add_request("r", [5, 6, 7], ENDLESS)
    engine.step()
    os.kill(processes[0 if victim == "engine" else 1].pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError):
        step_for_ever(engine)
    assert_all_gone(processes)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a stopped process cannot be ended from afar")
def test_a_stopped_worker_ends_with_its_engine(engine) -> None:
    core = psutil.Process(engine.engine_core.process_id)
    (worker,) = workers_of(core.pid)
    worker.suspend()
    core.kill()  # what a front end does that has waited long enough
    assert_all_gone([worker])


def step_for_ever(engine) -> None:
    while True:
        if not engine.has_unfinished_requests():
            engine.add_request("r", [5, 6, 7], ENDLESS)
        engine.step()


SCRIPT = """
import sys
from pathlib import Path
from learnvllm.assembly import build_llm_engine
from tests.engine.engines import make_config
engine = build_llm_engine(make_config(Path(sys.argv[1]), executor="mp"), multiprocess=True)
print(engine.engine_core.process_id, flush=True)
sys.stdin.read()
"""


def test_no_process_survives_a_killed_front_end(tiny_model, repository: Path) -> None:
    front_end = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tiny_model("llama").directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(repository)},
    )
    assert front_end.stdout is not None
    core = psutil.Process(int(front_end.stdout.readline()))
    processes = [core, *workers_of(core.pid)]
    front_end.kill()
    front_end.communicate()
    assert_all_gone(processes)
