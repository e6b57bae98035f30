"""The commands as a learner types them: what they print, what they return, what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from learnvllm import cli
from learnvllm.study import files, grading, progress, to_notebook, watch
from learnvllm.study.catalogue import find_day
from learnvllm.study.commands import check as check_command
from learnvllm.study.exercise import Exercise
from learnvllm.study.site import day_plan
from learnvllm.study.starters import render_solution, render_starter
from learnvllm.study.terminal import minutes
from tests.study.loop.conftest import Shell

LEARN = cli.GROUPS["Learn"]

# ------------------------------------------------------------------------------------------- the whole loop


def test_a_learner_goes_from_the_starter_to_a_pass(tiny: Exercise, home: Path, shell: Shell) -> None:
    """With the real grader: next, check, hint, write, check, progress, journal, solution."""
    assert shell("next") == 0
    assert files.shown(tiny.path) in shell.out
    assert shell("check") == 1
    assert files.shown(tiny.path) in shell.out
    assert "Not written yet: cdiv" in shell.out
    assert "learnvllm hint tiny" in shell.out
    assert shell("hint") == 0
    assert "one" in shell.out
    assert shell("solution tiny") == 2
    named = shell.err
    assert shell("solution") == 2  # of the next one, as with check and hint
    assert shell.err == named
    tiny.path.write_text(
        render_starter(tiny).replace('raise NotImplementedError("TODO: cdiv")', "return a // b")
    )
    assert shell("check tiny") == 1
    assert "cdiv(7, 2): expected 4, got 3; read docs/topics/architecture" in shell.out
    tiny.path.write_text(render_solution(tiny))
    assert shell("check tiny") == 0
    assert "Passed: 2 of 2 points, 2 attempts, 1 hint." in shell.out
    assert "passed" in (home / "journal/day-01.md").read_text()
    assert shell("solution tiny") == 0
    assert "+    return -(a // -b)" in shell.out
    assert shell("progress --json") == 0
    told = json.loads(shell.out)
    assert told["points"] == 2
    assert told["next"] == "kv_cache.free_queue"
    day = told["days"][0]
    assert (day["status"], day["exercises"][0]["status"]) == ("done", "passed")


def test_check_without_an_id_goes_on_to_what_has_not_passed(
    tiny: Exercise, graded: dict[str, Any], shell: Shell
) -> None:
    for title in ("Tiny", "A free queue"):
        assert shell("check") == 0
        assert shell.out.startswith(title)
    assert shell("check") == 0
    assert "Every exercise has passed" in shell.out
    assert graded["calls"] == 2
    for line in ("next", "progress", "check --json", "next --json"):
        assert shell(line) == 0
    assert shell("hint") == 2


def test_a_path_is_told_whatever_is_in_its_name(
    tiny: Exercise, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks like markup is printed as it stands."""
    home = tmp_path / "[red]" / "[" / "home"
    monkeypatch.setenv("LEARNVLLM_STUDY_HOME", str(home))
    tiny.path.write_text("def cdiv(a, b): return 0\n")
    for line, told in (
        ("journal 1", "journal/day-01.md"),
        ("journal export", "journal/export.md"),
        ("reset tiny", "backups/architecture.tiny/"),
    ):
        assert shell(line) == 0
        assert f"[red]/[/home/{told}" in shell.out


def test_next_says_why_it_goes_back(tiny: Exercise, graded: dict[str, Any], shell: Shell) -> None:
    assert shell("next") == 0
    assert "in the order of the days" not in shell.out
    assert shell("check free_queue") == 0
    assert shell("next") == 0
    assert shell.out.startswith("Tiny")
    assert "You have passed some of day 4 already" in shell.out


def test_check_as_json(tiny: Exercise, graded: dict[str, Any], shell: Shell) -> None:
    graded["passed"] = False
    assert shell("check tiny --json") == 1
    told = json.loads(shell.out)
    assert told["subject"] == str(tiny.path)
    assert told["status"] == "fail"
    assert told["recorded"]["attempts"] == 1


# --------------------------------------------------------------------------------------------------- mishaps


def test_ctrl_c_during_a_check_records_nothing(tiny: Exercise, graded: dict[str, Any], shell: Shell) -> None:
    shell("check tiny")
    before = progress.progress_path().read_bytes()
    graded.update(raises=KeyboardInterrupt(), hash="other")
    assert shell("check tiny") == 130
    assert shell.err == ""
    assert progress.progress_path().read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_ends_the_grader_too(tiny: Exercise, home: Path, tmp_path: Path) -> None:
    """A loop that never ends, graded in a process of its own: nothing of it is left."""
    marker = tmp_path / "pid"
    tiny.path.write_text(
        f"import os\nopen({str(marker)!r}, 'w').write(str(os.getpid()) + chr(10))\n"
        "def cdiv(a, b):\n    while True: pass\n"
    )
    command = [sys.executable, "-m", "learnvllm", "check", "tiny"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (marker.exists() and marker.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, b"")
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
    assert not (home / "progress.toml").exists()


def test_a_recorded_exercise_that_is_gone_is_named_and_kept(
    tiny: Exercise, graded: dict[str, Any], shell: Shell
) -> None:
    shell("check tiny")
    for path in tiny.folder.iterdir():
        path.unlink()
    tiny.folder.rmdir()
    assert shell("progress") == 0
    assert "architecture.tiny. Their records are kept." in shell.out
    assert shell("check tiny") == 2
    assert "There is no exercise 'tiny'" in shell.err
    shell("check")
    assert progress.load_progress().of(tiny.id).passed


def test_a_state_file_from_the_future_does_not_stop_grading(
    tiny: Exercise, graded: dict[str, Any], home: Path, shell: Shell
) -> None:
    home.mkdir()
    (home / "progress.toml").write_text("version = 99\n")
    assert shell("check tiny") == 0
    assert "Not recorded: " in shell.out
    for line in ("progress", "next", "hint tiny", "reset tiny", "solution tiny", "day 1", "journal 1"):
        assert shell(line) == 2
        assert "version = 99" in shell.err
        assert len(shell.err.splitlines()) == 1
    assert (home / "progress.toml").read_text() == "version = 99\n"


@pytest.mark.parametrize(
    "line",
    ["check nosuch", "hint nosuch", "solution nosuch", "reset nosuch", "update nosuch", "day 12", "quiz 1",
     "notebook 7", "update --resolved", "study", "journal nonsense", "check ''", "hint ''", "update ''"],
)  # fmt: skip
def test_a_mistake_is_one_line_and_2(line: str, exercises: Path, shell: Shell, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(files, "ROOT", tmp_path)
    assert shell(line) == 2
    assert shell.out == ""
    assert len(shell.err.splitlines()) == 1, shell.err
    assert shell.err.startswith(f"learnvllm {line.split()[0]}: ")


# --------------------------------------------------------------------------------------------- hint, solution


def test_hints_come_one_by_one_and_are_counted(tiny: Exercise, shell: Shell) -> None:
    assert shell("hint tiny --again") == 0
    assert "No hint was shown yet" in shell.out
    for count in (1, 2, 3):
        assert shell("hint tiny --json") == 0
        assert json.loads(shell.out) == {"id": tiny.id, "hints": ["one", "two", "three"][:count], "of": 3}
        assert progress.load_progress().of(tiny.id).hints == count
    assert shell("hint tiny --again") == 0
    assert "There are no more" not in shell.out
    assert shell("hint tiny") == 0
    assert "There are no more" in shell.out
    assert progress.load_progress().of(tiny.id).hints == 3
    assert shell("solution tiny") == 2
    assert "one more" not in shell.err


def test_a_hint_is_the_next_one_alone(tiny: Exercise, shell: Shell) -> None:
    assert shell("hint tiny") == 0
    assert "Hint 1 of 3" in shell.out
    assert "--again" not in shell.out
    assert shell("hint tiny") == 0
    assert "Hint 2 of 3" in shell.out
    assert "Hint 1 of 3" not in shell.out
    assert "Those before it: learnvllm hint tiny --again" in shell.out
    assert shell("solution tiny") == 2
    assert "2 of 3 hints shown (one more: `learnvllm hint tiny`)." in shell.err


def test_hints_after_passing_are_not_counted(tiny: Exercise, shell: Shell) -> None:
    with progress.changing_progress() as state:
        state.of(tiny.id).hints, state.of(tiny.id).passed = 1, "2026-11-30T12:00:00"
    assert shell("hint tiny") == 0
    assert all(f"Hint {number} of 3" in shell.out for number in (1, 2, 3))
    assert progress.load_progress().of(tiny.id).hints == 1


def test_giving_up_is_recorded_once_and_shows_the_solution(tiny: Exercise, shell: Shell) -> None:
    assert shell("solution tiny") == 2
    assert progress.load_progress().of(tiny.id).gave_up is None
    assert shell("solution tiny --give-up") == 0
    assert "+    return -(a // -b)" in shell.out
    first = progress.load_progress().of(tiny.id).gave_up
    assert first
    assert shell("solution tiny --json") == 0
    assert "return -(a // -b)" in json.loads(shell.out)["diff"]
    assert shell("progress") == 0
    assert "gave up" in shell.out


# ------------------------------------------------------------------------------------------------- watching


def test_watch_checks_at_every_save_until_ctrl_c(
    tiny: Exercise, graded: dict[str, Any], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = iter([True, True])

    def changes(paths: list[Path], wait: Any, *, since: Any) -> Any:
        assert paths == [tiny.path]
        if not next(saves, False):
            raise KeyboardInterrupt
        graded["passed"] = not graded["passed"]
        yield

    monkeypatch.setattr(watch, "changes", changes)
    assert shell("check tiny --watch --json") == 0
    assert [json.loads(line)["status"] for line in shell.out.splitlines()] == ["pass", "fail", "pass"]


def test_watch_notices_what_was_saved_while_it_checked(
    tiny: Exercise, graded: dict[str, Any], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, looks = grading.grade, iter(range(5))

    def check_and_save(*args: Any, **kwargs: Any) -> Any:
        tiny.path.write_text("mine = 1")
        return check(*args, **kwargs)

    def sleep(_: float) -> None:
        if graded["calls"] > 1 or next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(grading, "grade", check_and_save)
    monkeypatch.setattr(time, "sleep", sleep)
    shell("check tiny --watch --json")
    assert graded["calls"] == 2


def test_watch_without_an_id_moves_on_after_a_pass(
    tiny: Exercise, graded: dict[str, Any], shell: Shell
) -> None:
    assert shell("check --watch") == 0
    assert shell.out.index("Tiny") < shell.out.index("A free queue") < shell.out.index("Every exercise")


# ----------------------------------------------------------------------------------- day, notebooks, output


def test_a_days_plan_is_the_sites(free_queue: Exercise, graded: dict[str, Any], shell: Shell) -> None:
    steps = day_plan.steps(find_day(4))
    assert shell("day 4") == 0
    assert minutes(sum(step.minutes for step in steps)) in shell.out
    titles = [step.title for step in steps if step.verb in ("Read", "Build")]
    assert titles[0] == "Concepts"
    assert titles[-2:] == ["Walkthrough", "In vLLM"]  # it shows what the exercises ask for
    positions = [shell.out.index(f"{step.verb:<7} {step.title}") for step in steps]
    assert positions == sorted(positions)
    for text in (
        "docs/topics/kv_cache/concepts.md",
        "learnvllm check kv_cache.free_queue",
        "open, 0/10 points",
    ):
        assert text in shell.out
    shell("check free_queue")
    assert shell("day 4") == 0
    assert "passed, 10/10 points" in shell.out
    assert shell("day 4 --json") == 0
    told = json.loads(shell.out)
    assert [step["title"] for step in told["plan"]] == [step.title for step in steps]
    assert shell("day 9") == 0
    assert "coming" in shell.out


def test_a_day_of_one_page_is_to_be_read(shell: Shell) -> None:
    assert shell("day 5") == 0
    assert "Read" in shell.out
    assert "docs/topics/executor_worker/index.md" in shell.out
    assert shell("progress") == 0
    lines = shell.out.splitlines()
    (five,), (nine,) = ([line for line in lines if f"Day {number:>2}" in line] for number in (5, 9))
    assert "one page" in five
    assert "one page" not in nine


def test_a_pass_names_the_flags_that_reach_the_code(tiny: Exercise, shell: Shell) -> None:
    toml = tiny.folder / "exercise.toml"
    toml.write_text(toml.read_text().replace("points = 2", 'points = 2\nflags = "--seed 3"'))
    tiny.path.write_text(render_solution(tiny))
    assert shell("check tiny") == 0
    assert "learnvllm chat --mine tiny --seed 3\n" in shell.out


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    source = tmp_path / "notebooks/day03_scheduling/01_budget.py"
    source.parent.mkdir(parents=True)
    source.write_text("# %% [markdown]\n# # Budget\n\n# %%\n1 + 1\n")
    return source


def test_notebooks_are_made_once_and_then_the_learners(notebook: Path, home: Path, shell: Shell) -> None:
    target = home / "notebooks/day03_scheduling/01_budget.ipynb"
    assert shell("notebook 3 --no-open") == 0
    assert files.shown(target) in shell.out
    assert [cell["cell_type"] for cell in json.loads(target.read_text())["cells"]] == ["markdown", "code"]
    target.write_text("mine")
    for word, outcome in (("", "kept"), ("--fresh", "made")):
        assert shell(f"notebook 3 --json {word}") == 0
        assert json.loads(shell.out)["notebooks"] == [{"file": str(target), "outcome": outcome}]
    (backup,) = (home / "backups/day03_scheduling.01_budget").iterdir()
    assert backup.read_text() == "mine"
    os.utime(notebook, (2e9, 2e9))
    assert shell("notebook 3 --no-open") == 0
    assert "its source is newer" in shell.out


def test_without_jupyter_lab_one_line_says_how_to_get_it(
    notebook: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_notebook.importlib.util, "find_spec", lambda name: None)
    assert shell("notebook 3") == 2
    assert '-e ".[lab]"' in shell.err
    assert len(shell.err.splitlines()) == 1


def test_a_missing_extra_names_what_installs_it(
    tiny: Exercise, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert shell("journal 1") == 2
    assert 'pip install -c constraints.txt -e ".[study]"' in shell.err


@pytest.mark.parametrize("line", ["progress", "day 1", "next", "check tiny", "hint tiny"])
def test_what_is_piped_has_no_colours(
    line: str, tiny: Exercise, graded: dict[str, Any], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shell(line)
    assert shell.out
    assert "\x1b" not in shell.out


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_has_colours_unless_no_color_is_set(tiny: Exercise, no_color: bool) -> None:
    import pty

    terminal, inside = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", **({"NO_COLOR": "1"} if no_color else {})}
    command = [sys.executable, "-m", "learnvllm", "next"]
    subprocess.run(command, stdout=inside, stderr=inside, env=environ, check=True, timeout=60)
    os.close(inside)
    seen = os.read(terminal, 65536)
    os.close(terminal)
    assert (b"\x1b[" in seen) is not no_color
    assert b"Tiny" in seen


def test_the_help_lists_the_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    positions = [shown.index(f"\n{title}:") for title in cli.GROUPS]
    assert positions == sorted(positions)
    learn = shown[shown.index("\nLearn:") : shown.index("\nThis machine:")]
    assert [line.split()[0] for line in learn.splitlines()[2:] if line] == list(LEARN)


def test_help_imports_nothing_of_the_companion() -> None:
    program = (
        "import sys; from learnvllm import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "sys.exit(any(name.startswith(('learnvllm.study', 'rich', 'textual')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("verbose", [False, True])
def test_messages_of_many_failures(verbose: bool, capsys: pytest.CaptureFixture[str], tiny: Exercise) -> None:
    """The first three in full, of the others the first line; --verbose tells all."""
    from learnvllm.study.checking import Checked
    from learnvllm.study.grading import GradeReport, TestReport
    from learnvllm.study.terminal import console

    tests = tuple(
        TestReport(f"test_{n}", "failed", 0, 1, f"first {n}\nsecond {n}", "printed\n") for n in range(5)
    )
    report = GradeReport(tiny.id, tiny.path, False, 0, 5, tests, "a [b]problem[/b]", 0.1, "h")
    check_command.show_report(console(), Checked(tiny, report, None, None, ("a note",)), verbose=verbose)
    shown = capsys.readouterr().out
    assert [f"second {n}" in shown for n in range(5)] == [True, True, True, verbose, verbose]
    assert ("fix those first. --verbose shows all" in shown) is not verbose
    assert all(f"first {n}" in shown for n in range(5))
    assert "a [b]problem[/b]" in shown
    assert "| printed" in shown
    assert "Note: a note" in shown
