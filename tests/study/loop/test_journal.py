"""The journal: the learner's words stay, the facts follow."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from learnvllm.study import files, journal, measure, progress
from learnvllm.study.checking import check
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.overview import day_state
from tests.study.loop.conftest import Shell, record_hints

GOOD = "---\nday: 1\ntitle: Architecture\ndate: 2026-01-31\nstatus: open  # so far\n---\n\nMine.\n"


def write(home: Path, text: str) -> Path:
    path = home / "journal" / "day-01.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_an_entry_is_made_with_its_sections(tiny: Exercise) -> None:
    text = journal.refresh(1).path.read_text()
    for part in (
        "date: ",
        "status: open",
        "## Summary",
        "## Confusions",
        "## Breakthroughs",
        "| Tiny | open |",
    ):
        assert part in text


def test_a_pass_is_written_into_it(tiny: Exercise, graded: dict[str, Any], home: Path) -> None:
    path = write(home, GOOD)
    record_hints(tiny.id, 2)
    assert check(tiny).journal == path
    text = path.read_text()
    assert "\nMine.\n" in text
    assert "| Tiny | passed 2" in text
    assert "| 2 of 2 | 2 | 1 |" in text
    assert "status: done  # so far\n" in text


def test_what_the_learner_writes_stays(tiny: Exercise, graded: dict[str, Any]) -> None:
    path = journal.refresh(1).path
    text = path.read_text()
    mine = text.replace("## Confusions\n", "## Confusions\n\nWhy --- and\x0cwhy | not?\n") + "\nAt the end.\n"
    path.write_text(mine)
    check(tiny)
    after = path.read_text()
    begin, end = mine.index(journal.BEGIN), mine.index(journal.END)
    assert after.startswith(mine[:begin].replace("status: open", "status: done"))
    assert after.endswith(mine[end:])
    journal.refresh(1)
    assert path.read_text() == after


def test_a_measurement_is_told_where_its_exercise_is_of_the_day(tiny: Exercise) -> None:
    progress.record_benchmark("w", 200, what="output tokens per second", unit="tok/s")
    progress.record_benchmark("w", 150, what="output tokens per second", unit="tok/s", parts=[tiny.id])
    progress.record_benchmark("v", 1, what="x", unit="y")
    progress.record_benchmark("v", 2, what="x", unit="y", parts=["kv_cache.free_queue"])
    text = journal.refresh(1).path.read_text()
    assert "150 tok/s with your code, 200 with the reference (-25.0%)" in text
    assert "v:" not in text


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("Hello\n", 1, "first line must be ---"),
        ("", 1, "first line must be ---"),
        ("---\ndate: 2026-01-31\n", 1, "no end"),
        (GOOD.replace("title: ", "title: ]["), 3, "front matter"),
        (GOOD.replace("2026-01-31", "yesterday"), 4, "yesterday"),
        (GOOD.replace("2026-01-31", "2026-02-31"), 4, "day"),
        (GOOD.replace("status: open", "status: great"), 5, "great"),
        (GOOD.replace("day: 1", "day: 2"), 2, "should be 1"),
        (GOOD.replace("status: open  # so far\n", ""), 1, "status"),
        ("---\n- a\n---\n", 2, "status: open"),
        (GOOD + journal.BEGIN + "\n", 9, "generated part"),
        (GOOD + journal.END + "\n" + journal.BEGIN + "\n", 10, "generated part"),
    ],
)
def test_a_broken_entry_is_told_by_its_line_and_left_alone(
    text: str, line: int, says: str, tiny: Exercise, graded: dict[str, Any], home: Path, shell: Shell
) -> None:
    path = write(home, text)
    with pytest.raises(StudyError, match=f"day-01.md, line {line}: ") as error:
        journal.refresh(1)
    assert says in str(error.value)
    checked = check(tiny)
    assert checked.record is not None
    assert "day-01.md" in checked.problems[0]
    assert path.read_text() == text
    assert shell("progress") == 0  # one broken entry does not hide the rest
    assert shell("journal 1") == 2
    assert len(shell.err.splitlines()) == 1


def test_list_and_export(tiny: Exercise, graded: dict[str, Any], home: Path, shell: Shell) -> None:
    assert shell("journal list") == 0
    assert "empty" in shell.out
    assert shell("journal export") == 2
    write(home, GOOD)
    assert shell("journal 4") == 0
    assert shell("journal list") == 0
    assert [line.split()[1] for line in shell.out.splitlines()] == ["1", "4"]
    assert shell(f"journal export --out {home / 'all.md'}") == 0
    text = (home / "all.md").read_text()
    assert text.count("page-break-after") == 2
    assert "Mine." in text
    assert "# Day 4: KV cache" in text
    assert journal.BEGIN not in text
    assert journal.PROMPTS[0] not in text


def test_no_such_day(exercises: Path, shell: Shell) -> None:
    for line in ("journal 12", "journal x", "day 0", "quiz 12", "notebook 99"):
        assert shell(line) == 2
        assert len(shell.err.splitlines()) == 1, shell.err


def test_measuring_takes_turns_and_writes_the_medians_down(
    tiny: Exercise, graded: dict[str, Any], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("journal 1 --measure") == 2
    assert "None of day 1's exercises has passed" in shell.err
    check(tiny)
    runs: list[list[str]] = []
    figures = iter([100, 80, 1, 90, 110, 1000])

    def run(parts: list[str]) -> float:
        runs.append(list(parts))
        return next(figures)

    monkeypatch.setattr(measure, "run_benchmark", run)
    assert shell("journal 1 --measure") == 0
    assert runs == [[], [tiny.id]] * 3
    said = shell.err.splitlines()
    assert said[1] == "run 1 of 6: the reference"
    assert said[6] == "run 6 of 6: your code, about 0 s left"
    told = f"{measure.WHAT} 90 tok/s with your code, 100 with the reference (-10.0%)."
    assert said[-1] == f"{told} The reference's own runs: 1 to 110."
    text = journal.entry_path(1).read_text()
    assert "90 tok/s with your code, 100 with the reference (-10.0%)" in text


def test_measuring_is_recorded_once_and_not_by_each_run(
    tiny: Exercise, graded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that is run records into a home of its own."""
    check(tiny)
    homes = []

    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        homes.append(Path(how["env"]["LEARNVLLM_STUDY_HOME"]))
        assert homes[-1].is_dir()
        return subprocess.CompletedProcess(command, 0, json.dumps({"figures": {measure.WHAT: 100.0}}), "")

    monkeypatch.setattr(subprocess, "run", run)
    measure.measure(day_state(1), lambda line: None)
    assert len(homes) == 2 * measure.ROUNDS
    assert files.study_home() not in homes
    assert not any(home.exists() for home in homes)
    assert len(progress.load_progress().benchmarks) == 1


def test_a_benchmark_that_fails_is_told_in_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "FLAGS", ("--num-prompts", "0"))
    with pytest.raises(StudyError, match=r"exit code 2.*--num-prompts 0"):
        measure.run_benchmark([])
