"""The grader says what happened, whatever the file under grading does, and never hangs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from learnvllm.study import bounded_process
from learnvllm.study.catalogue import find_exercise
from learnvllm.study.exercise import Exercise, file_hash
from learnvllm.study.grading import GradeReport, grade
from learnvllm.study.mutants import apply_mutant, find_mutant
from learnvllm.study.starters import render_solution

BODY = "        before, after = block.prev_free, block.next_free\n"
"""A line of `remove` before which a test puts its mischief."""


def solved(exercise: Exercise, before_removal: str = "", at_the_end: str = "") -> Path:
    """The solution in the learner's file, with lines put in."""
    text = render_solution(exercise)
    assert BODY in text
    lines = "".join(f"        {line}\n" for line in before_removal.splitlines())
    exercise.path.write_text(text.replace(BODY, lines + BODY) + at_the_end, "utf-8")
    return exercise.path


MUTE = (
    "\n\nclass Mute(Exception):\n    def __str__(self):\n        return 1 / 0\n\n    __repr__ = __str__\n\n\n"
)


def outcomes(report: GradeReport) -> set[str]:
    return {test.outcome for test in report.tests}


def test_the_solution_gets_all_points(free_queue: Exercise) -> None:
    solved(free_queue)
    begun: list[str] = []
    report = grade(free_queue, on_test=begun.append)
    assert report.passed
    assert report.problem is None
    assert report.points == report.max_points == free_queue.points
    assert report.subject == free_queue.path.resolve()
    assert [name.partition("[")[0] for name in begun][-1] == report.tests[-1].name
    told = json.loads(json.dumps(report.to_json()))
    assert told["status"] == "pass"
    assert {test["status"] for test in told["tests"]} == {"pass"}


def test_the_starter_gets_none_and_is_told_what_is_not_written(free_queue: Exercise) -> None:
    report = grade(free_queue)
    assert not report.passed
    assert report.problem is None
    assert report.points == 0
    assert outcomes(report) == {"not_written"}
    names = ("append", "appendleft", "popleft", "remove", "_insert")  # though no test came as far as the last
    assert report.not_written == tuple(f"FreeKVCacheBlockQueue.{name}" for name in names)
    assert report.to_json()["status"] == "fail"


def test_another_file_can_be_graded(free_queue: Exercise, tmp_path: Path) -> None:
    """As dev check does with mutants; what the grader says is about that file."""
    wrong = apply_mutant(render_solution(free_queue), find_mutant(free_queue, "last in, first out"))
    other = tmp_path / "other.py"
    other.write_text(wrong, "utf-8")
    report = grade(free_queue, other)
    assert report.subject == other
    assert 0 < report.points < report.max_points
    messages = {test.name: test.message for test in report.tests}
    said = messages["test_any_sequence_of_operations_gives_what_a_list_gives"]
    assert said.startswith("After append(0), append(1) the queue must hold [0, 1], it holds [1, 0].")
    assert "operations=[('append', 0), ('append', 1)]" in said  # the smallest example
    assert "\nassert " not in said


def test_what_is_saved_meanwhile_was_not_graded(free_queue: Exercise) -> None:
    """Its hash would make it pass."""
    path = solved(free_queue)
    graded = file_hash(path)
    report = grade(free_queue, on_test=lambda name: path.write_text("nonsense", "utf-8"))
    assert report.passed
    assert report.subject_hash == graded != file_hash(path)


def test_an_error_is_told_with_the_line_of_the_learner(free_queue: Exercise) -> None:
    solved(free_queue, "1 / 0")
    failed = next(test for test in grade(free_queue).tests if test.outcome == "failed")
    assert failed.message.startswith("ZeroDivisionError: division by zero (line ")
    assert "of exercise.py, in remove)" in failed.message


def test_an_error_that_cannot_say_what_it_is_does_not_break_the_grader(free_queue: Exercise) -> None:
    solved(free_queue, "raise Mute", at_the_end=MUTE)
    failed = next(test for test in grade(free_queue).tests if test.outcome == "failed")
    assert failed.message.startswith("Mute: (its __str__ raised ZeroDivisionError) (line ")
    solved(free_queue, at_the_end=f"{MUTE}raise Mute\n")
    assert "cannot be imported: Mute: (its __str__ raised ZeroDivisionError) (line" in str(
        grade(free_queue).problem
    )


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"class FreeKVCacheBlockQueue:\n    def f(self\n", r"exercise.py, line 2: .*: def f\(self"),
        (b"x = 1\0\n", "exercise.py: .*null bytes"),
        (b"x = '\xff'\n", "exercise.py.*utf-8"),
        (b"x = " + b"+".join([b"1"] * 100_000), "^exercise.py is nested too deeply.$"),
        (b"-" * 200_000 + b"1\n", "^exercise.py is nested too deeply.$"),
        (
            b"x = [" + b"1," * 5_000_000 + b"]",
            "^exercise.py has 10,000,006 bytes; up to 1,000,000 are read",
        ),
        (b"", "exercise.py does not define FreeKVCacheBlockQueue: was it renamed or deleted"),
        (b"import sys\nsys.exit(3)\n", r"exercise.py cannot be imported: it calls sys.exit\(3\) \(line 2\)"),
        (b"\n\nnothing\n", r"cannot be imported: NameError: name 'nothing' is not defined \(line 3\)"),
        (b"import os\nos._exit(4)\n", r"ended \(exit code 4\) while exercise.py was imported"),
    ],
)
def test_a_file_that_cannot_be_imported(free_queue: Exercise, text: bytes, problem: str) -> None:
    import re

    free_queue.path.write_bytes(text)
    report = grade(free_queue)
    assert report.problem is not None
    assert re.search(problem, report.problem), report.problem
    assert not report.passed
    assert report.points == 0
    assert report.to_json()["status"] == "error"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("import sys; sys.exit(0)", r"sys.exit(0) was called (line "),
        ("import os; os._exit(0)", "The process ended (exit code 0) while test_blocks_come_out"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt ended the run, while test_blocks_come_out"),
        ("import pytest; pytest.exit('passed')", "Exit ended the run, while test_blocks_come_out"),
    ],
)
def test_code_that_leaves_the_process(free_queue: Exercise, lines: str, problem: str) -> None:
    solved(free_queue, lines)
    report = grade(free_queue)
    assert report.problem is not None
    assert problem in report.problem
    assert not report.passed
    assert len(report.tests) == 7


def test_skipping_is_not_passing(free_queue: Exercise) -> None:
    solved(free_queue, "import pytest; pytest.skip('later')")
    report = grade(free_queue)
    assert not report.passed
    assert "not_run" in outcomes(report)


@pytest.mark.parametrize("where", ["test", "import"])
def test_an_infinite_loop_is_ended_and_located(free_queue: Exercise, where: str) -> None:
    if where == "test":
        path = solved(free_queue, "while block:\n    pass")
    else:
        path = solved(free_queue, at_the_end="while True:\n    pass\n")
    lines = path.read_text("utf-8").splitlines()
    loop = next(
        number for number, line in enumerate(lines, 1) if line.strip() in ("while block:", "while True:")
    )
    begun = time.monotonic()
    report = grade(free_queue, timeout_s=6)
    assert time.monotonic() - begun < 30
    assert report.problem is not None
    assert report.problem.startswith("Time limit: not done after 6 s, stopped while ")
    assert any(f"line {loop + more} of exercise.py" in report.problem for more in (0, 1)), report.problem
    if where == "test":
        assert report.tests[0].outcome == "time_limit"
        assert {test.outcome for test in report.tests[1:]} == {"not_run"}


@pytest.mark.parametrize("logger", ["asyncio", "learner"])
def test_a_task_that_fails_unseen_is_collected_in_silence(
    free_queue: Exercise, tmp_path: Path, logger: str
) -> None:
    """It may be while pytest parses a source: its traceback needs that too, and Python 3.11 breaks down."""
    seen = tmp_path / "seen"
    lines = f"""
import asyncio, gc, logging, pathlib

class Handler(logging.Handler):
    def emit(self, record):
        if record.name == "{logger}":
            pathlib.Path({str(seen)!r}).write_text(record.getMessage())

async def forget():
    asyncio.create_task(fail())
    await asyncio.sleep(0)

async def fail():
    raise ValueError("unseen")

logging.getLogger().addHandler(Handler())
asyncio.run(forget())
gc.collect()
logging.getLogger("learner").error("done")
"""
    solved(free_queue, at_the_end=lines)
    assert grade(free_queue).passed
    assert seen.exists() is (logger == "learner")


def test_the_numbers_in_a_file_have_no_say_in_the_examples(free_queue: Exercise, tmp_path: Path) -> None:
    """Passed here means passed everywhere: hypothesis would try the constants of the learner's file, too."""
    drawn = tmp_path / "drawn"
    free_queue.test_path.write_text(
        f"""
import pytest
from hypothesis import given, strategies as st
from learnvllm.study.subject import load_subject

load_subject(__file__)

@pytest.mark.points({free_queue.points})
@given(st.integers(), st.text())
def test_draws(number, text):
    with open({str(drawn)!r}, "a") as file:
        print(number, ascii(text), file=file)
""",
        "utf-8",
    )
    seen = []
    for constants in ("", "N = [1234567 + 0, 7654321 + 0, 31415926 + 0]\nT = 'a learner', 'of words'\n"):
        solved(free_queue, at_the_end=constants)
        assert grade(free_queue).passed
        seen.append(drawn.read_text())
        drawn.unlink()
    assert seen[0] == seen[1]
    assert seen[0].count("\n") >= 100


def test_a_huge_print_is_cut(free_queue: Exercise) -> None:
    solved(free_queue, "print('begin'); print('x' * 10_000_000); print('end')")
    report = grade(free_queue)
    assert report.passed
    assert all(len(test.output) < 11_000 for test in report.tests)
    printed = report.tests[0].output
    assert printed.startswith("begin")
    assert printed.endswith("end\n")
    assert "characters left out" in printed


def test_a_huge_print_past_python_is_cut(free_queue: Exercise) -> None:
    solved(free_queue, "import os; os.write(1, b'x' * 10_000_000)")
    report = grade(free_queue)
    assert report.passed
    assert len(report.output) < 200_000


def test_nothing_outlives_the_grader(free_queue: Exercise, tmp_path: Path) -> None:
    """Neither a child, nor a child in a session of its own, nor a thread."""
    pids = tmp_path / "pids"
    solved(
        free_queue,
        at_the_end=(
            "import subprocess, sys, threading, time\n"
            "for alone in (False, True):\n"
            "    code = 'import time; time.sleep(600)'\n"
            "    child = subprocess.Popen([sys.executable, '-c', code], start_new_session=alone)\n"
            f"    open({str(pids)!r}, 'a').write(f'{{child.pid}} ')\n"
            "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        ),
    )
    assert grade(free_queue).passed
    children = [int(pid) for pid in pids.read_text().split()]
    assert len(children) == 2
    for pid in children:
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform == "win32", reason="ends a process by a signal")
@pytest.mark.parametrize("number", ["SIGHUP", "SIGTERM", "SIGKILL"])
def test_a_loop_does_not_outlive_who_grades_it(tmp_path: Path, number: str) -> None:
    """A closed terminal, `kill`: no time for the one that waits to end it."""
    loop = "import os; print(os.getpid(), file=open('pid', 'w'), flush=True)\nwhile True: pass"
    code = (
        "import os, pathlib, signal, sys; from learnvllm.study import bounded_process\n"
        f"def die(): os.path.exists('pid') and os.kill(os.getpid(), signal.{number})\n"
        f"bounded_process.run([sys.executable, '-c', {loop!r}], cwd=pathlib.Path('.'), env=os.environ, "
        "timeout_s=300, watch=die)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == -getattr(signal, number)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the loop runs on"
        time.sleep(0.02)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_process, "MEMORY_LIMIT", 300 * 2**20)
    code = "held = []\nwhile True: held.append(b'x' * 10_000_000 + bytes([len(held) % 251]))"
    ending = bounded_process.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, timeout_s=120)
    assert ending.reason == "memory"


# ---------------------------------------------------------------------------------------- files that are gone


def test_a_renamed_file_is_named(free_queue: Exercise) -> None:
    free_queue.path.rename(free_queue.folder / "solution.py")
    problem = grade(free_queue).problem
    assert problem is not None
    assert "exercise.py is missing" in problem
    assert "there is solution.py: rename it back?" in problem
    assert "learnvllm reset kv_cache.free_queue" in problem


def test_a_missing_file_of_somebody_s_is_not_to_be_brought_back(free_queue: Exercise, tmp_path: Path) -> None:
    problem = grade(free_queue, tmp_path / "my.py").problem
    assert problem == f"my.py is missing from {tmp_path}. Name the file that is to be graded."


def test_a_file_that_may_not_be_read_is_named(free_queue: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "exercise.py":
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert grade(free_queue).problem == "exercise.py cannot be read: Permission denied."


def test_a_deleted_grader_is_named(free_queue: Exercise) -> None:
    solved(free_queue)
    free_queue.test_path.unlink()
    problem = grade(free_queue).problem
    assert problem is not None
    assert "test_exercise.py is missing" in problem
    assert "git checkout" in problem


def test_a_deleted_test_is_named(free_queue: Exercise) -> None:
    """Its points are missing in the sum, and proof.json remembers its name."""
    text = free_queue.test_path.read_text("utf-8")
    kept, mark, _ = text.rpartition("@pytest.mark.points")
    assert mark
    free_queue.test_path.write_text(kept, "utf-8")
    solved(free_queue)
    report = grade(free_queue)
    assert not report.passed
    assert report.problem is not None
    assert "tests worth 9 points, exercise.toml says 10" in report.problem
    assert "test_removing_costs_the_same_in_a_long_queue missing" in report.problem


def test_an_empty_grader_passes_nothing(free_queue: Exercise) -> None:
    solved(free_queue)
    free_queue.test_path.write_text("", "utf-8")
    report = grade(free_queue)
    assert not report.passed
    assert report.problem == "test_exercise.py holds no test any more."


def test_a_changed_grader_is_noted(free_queue: Exercise) -> None:
    solved(free_queue)
    assert grade(free_queue).notes == ()
    with free_queue.test_path.open("a", encoding="utf-8") as file:
        file.write("# mine\n")
    report = grade(free_queue)
    assert report.passed
    assert "test_exercise.py is not the original" in report.notes[0]


def test_the_learners_shell_has_no_say(free_queue: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay or a subject left in the environment would grade something else."""
    solved(free_queue)
    monkeypatch.setenv("LEARNVLLM_SUBJECT", "/nowhere.py")
    monkeypatch.setenv("LEARNVLLM_OVERLAY", "all")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    assert grade(find_exercise("free_queue")).passed


def test_plain_pytest_grades_too(free_queue: Exercise) -> None:
    ending = bounded_process.run(
        [sys.executable, "-m", "pytest", str(free_queue.folder)],
        cwd=free_queue.folder,
        env={name: value for name, value in os.environ.items() if name != "LEARNVLLM_EXERCISES"},
        timeout_s=60,
    )
    assert ending.code == 1
    assert "not written yet: FreeKVCacheBlockQueue.append" in ending.output
    assert "Traceback" not in ending.output
    solved(free_queue)
    ending = bounded_process.run(
        [sys.executable, "-m", "pytest", str(free_queue.folder)],
        cwd=free_queue.folder,
        env=os.environ,
        timeout_s=60,
    )
    assert ending.code == 0, ending.output
