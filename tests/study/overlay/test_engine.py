"""A learner's code in running engines: served, in workers, steps in flight; and how --shadow ends one."""

from __future__ import annotations

import concurrent.futures
import json
import os
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.serving.real_server import ServerProcess, serving
from tests.study.overlay.conftest import Learner

SMALL = (
    "--num-gpu-blocks-override",
    "64",
    "--dtype",
    "float32",
    "--num-threads",
    "1",
    "--max-model-len",
    "160",
)
GENERATE = ("generate", "--max-tokens", "12", "--temperature", "0", "--ignore-eos", *SMALL)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.model_layers.tiny_models import make_tiny_model

    return make_tiny_model("llama", tmp_path_factory.mktemp("models"))[0]


@pytest.fixture
def diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the learner's code writes which process it runs in."""
    path = tmp_path / "diary"
    monkeypatch.setenv("DIARY", str(path))
    return path


def writes_diary(learner: Learner, name: str, line: str) -> None:
    """Solve an exercise; whoever executes `line` of it leaves a note."""
    indent = line[: len(line) - len(line.lstrip())]
    note = f'{indent}__import__("tests.study.overlay.diary", fromlist=["*"]).write("{name}")\n'
    learner.solve(name, (line, note + line))


def notes(diary: Path) -> dict[str, set[int]]:
    """Exercise -> the processes that ran it."""
    found: dict[str, set[int]] = {}
    for line in diary.read_text().splitlines() if diary.exists() else ():
        name, process = line.split()
        found.setdefault(name, set()).add(int(process))
    return found


def complete(server: ServerProcess, prompt: str, **more: object) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def progress_of(learner: Learner, name: str) -> tuple[dict[str, Any], float]:
    """What `progress --json` says of an exercise, and the points of all."""
    told = json.loads(learner.cli("progress", "--json").stdout)
    (one,) = (e for day in told["days"] for e in day["exercises"] if e["id"] == name)
    return one, told["points"]


def journal_row(learner: Learner, day: int, title: str) -> list[str]:
    """The exercise's row in the day's journal entry: state, points, hints, tries."""
    entry = json.loads(learner.cli("journal", str(day), "--json").stdout)
    lines = Path(entry["file"]).read_text("utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_from_an_untouched_exercise_to_a_server_of_ones_own(
    learner: Learner, model: Path, diary: Path, tmp_path: Path
) -> None:
    """A learner from the start to the end, command by command."""
    name = "kv_cache.free_queue"
    assert learner.cli("check", name).returncode == 1
    before, points = progress_of(learner, name)
    assert (before["status"], before["points"], before["attempts"], points) == ("open", 0, 0, 0)
    most = before["max_points"]
    row = journal_row(learner, 4, before["title"])
    assert row == ["open", f"0 of {most}", "0", "0"]

    writes_diary(learner, "free_queue", "        block = self._head.next_free\n        if block is None or")
    assert learner.cli("check", name).returncode == 0
    after, points = progress_of(learner, name)
    assert (after["status"], after["points"], after["attempts"], points) == ("passed", most, 1, most)
    row = journal_row(learner, 4, before["title"])
    assert row == [f"passed {after['passed'][:10]}", f"{most} of {most}", "0", "1"]

    writes_diary(learner, "token_stream", "        self._pending.append(token_id)")
    diary.unlink(missing_ok=True)  # the grader has run the first, too
    with serving(model, tmp_path / "log", "--mine", "--mine", "token_stream", *SMALL) as server:
        assert complete(server, "Hello").status_code == 200
        engine, front_end = server.engine().pid, server.process.pid
        banner = server.output()
    assert engine != front_end
    assert notes(diary) == {"free_queue": {engine}, "token_stream": {front_end}}
    assert "Your code runs in this engine; the rest is the reference:" in banner
    assert (
        "kv_cache.free_queue       FreeKVCacheBlockQueue.append, .appendleft, .popleft, .remove, " in banner
    )
    assert "TokenStream.push, ._recover, .flush  (NOT PASSED as it is now: learnvllm check engine" in banner


def test_a_wrong_version_is_stopped_at_the_first_step_that_differs(learner: Learner, model: Path) -> None:
    """Prefix hits are counted twice: all goes well until the second prompt, which is the first one again."""
    prompt = "Hello, what a lovely day it is to read about schedulers and their budgets"
    flags = ("--model", str(model), "--max-num-seqs", "1", "--max-tokens", "4", prompt, prompt)
    run = (*GENERATE, *flags, "--mine", "token_budget", "--shadow")
    learner.solve(
        "token_budget", ("min(num_new_tokens, plan.token_budget)", "min(plan.token_budget, num_new_tokens)")
    )
    alike = learner.cli(*run)
    assert alike.returncode == 0
    assert "--shadow: no difference in what was compared." in alike.stderr
    learner.mutate("token_budget", "computes-hits-again")
    done = learner.cli(*run)
    assert done.returncode not in (0, None)
    assert "no difference" not in done.stderr
    # steps 0 to 3 make the first prompt's four tokens, step 4 admits the second
    assert "--shadow: step 4, when the step was decided" in done.stderr
    assert "It is scheduling.token_budget (Scheduler._get_prefill_budget" in done.stderr
    assert "Traceback" not in done.stderr


def test_in_worker_processes_with_steps_in_flight(learner: Learner, model: Path, diary: Path) -> None:
    writes_diary(learner, "paged_attention", "    starts = query_start_loc.tolist()")
    writes_diary(learner, "one_step_ahead", "        in_flight = request.num_output_placeholders")
    flags = ("--model", str(model), "--distributed-executor-backend", "mp", "--async-scheduling")
    reference = learner.cli(*GENERATE, *flags, "Hello")
    done = learner.cli(*GENERATE, *flags, "Hello", "--mine", "paged_attention,one_step_ahead", "--shadow")
    assert done.returncode == 0, done.stderr
    assert done.stdout == reference.stdout
    assert "compiled CPU kernels are off" in done.stderr
    processes = notes(diary)
    assert set(processes) == {"paged_attention", "one_step_ahead"}
    assert processes["paged_attention"].isdisjoint(processes["one_step_ahead"])  # worker and engine


def test_a_difference_ends_the_server_and_every_client_is_told(
    learner: Learner, model: Path, tmp_path: Path
) -> None:
    learner.mutate("token_budget", "forgets-tokens-in-flight")
    learner.solve("free_queue")
    flags = ("--mine", "token_budget,free_queue", "--shadow", "--async-scheduling", *SMALL)
    with serving(model, tmp_path / "log", *flags) as server, concurrent.futures.ThreadPoolExecutor() as pool:
        processes = psutil.Process(server.process.pid).children(recursive=True)
        answers = list(pool.map(lambda prompt: complete(server, prompt), ["Hello", "World", "A longer one"]))
        exit_code = server.wait()
        log = server.output()
    assert exit_code == 1
    assert any("--shadow: your code and the reference part at step" in answer.text for answer in answers)
    for answer in answers:
        assert answer.status_code >= 500
        assert "scheduling.token_budget" in answer.text or "stop" in answer.text, answer.text
    assert "It is scheduling.token_budget (Scheduler._get_prefill_budget" in log
    assert "Traceback" not in log
    assert not psutil.wait_procs(processes, timeout=20)[1]


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_a_difference_elsewhere_ends_the_command(learner: Learner, model: Path, executor: str) -> None:
    """In the front end, and in a worker."""
    if executor == "uni":
        name, taken = "token_stream", "        self._context, self._pending = self._pending, []\n"
        learner.solve(name, (taken + "        return text\n", taken + "        return text.upper()\n"))
    else:
        name = "paged_attention"
        learner.mutate(name, "values are keys")
    flags = ("--model", str(model), "--distributed-executor-backend", executor, "--mine", name, "--shadow")
    done = learner.cli(*GENERATE, *flags, "Hello, what a lovely day")
    assert done.returncode not in (0, None)
    assert "your code and the reference differ for the first time" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_in_a_worker_s_file_reaches_the_command(learner: Learner, model: Path) -> None:
    learner.solve("paged_attention", ("import torch\n", "import torch\n\nnonsense\n"))
    done = learner.cli(*GENERATE, "--model", str(model), "--mine", "paged_attention", "Hello")
    assert done.returncode == 2
    assert "exercise.py cannot be used: NameError: name 'nonsense' is not defined (line" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_python_program_needs_only_the_variable(learner: Learner, model: Path, diary: Path) -> None:
    writes_diary(learner, "free_queue", "        block = self._head.next_free\n        if block is None or")
    out = learner.python(
        f"""
        import os
        from learnvllm import LLM, SamplingParams
        llm = LLM({str(model)!r}, multiprocess=False, num_gpu_blocks_override=64, dtype="float32")
        llm.generate("Hello", SamplingParams(max_tokens=2), use_tqdm=False)
        print(os.getpid())
        """,
        "free_queue",
    )
    assert notes(diary) == {"free_queue": {int(out)}}
    assert os.getpid() != int(out)
