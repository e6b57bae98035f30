"""What a learner's disk may hold besides an exercise: told in a sentence, and nothing of theirs is lost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from learnvllm.study import files, journal, quiz
from learnvllm.study.catalogue import load_exercises
from learnvllm.study.exercise import Exercise, StudyError, file_hash
from learnvllm.study.overlay_select import select
from learnvllm.study.progress import changing_progress, load_progress, record_hint
from learnvllm.study.starters import render_starter
from tests.study.loop.conftest import Shell

MINE = "def cdiv(a, b):\n    return -(-a // b)\n"
posix = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")


def put(kind: str, path: Path) -> None:
    """Something that is no file, where the learner's file was."""
    path.unlink()
    if kind == "folder":
        path.mkdir()
        (path / "kept").write_text("mine")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"loop": path, "dangling": path.with_name("gone.py")}[kind])


@posix
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "dangling"])
def test_no_file_is_a_sentence_and_reset_moves_it_away(kind: str, tiny: Exercise, shell: Shell) -> None:
    put(kind, tiny.path)
    assert shell("check tiny --json") == 1
    told = json.loads(shell.out)["message"]
    assert told.startswith(f"exercise.py in {tiny.folder} is a ")
    assert "`learnvllm reset architecture.tiny`" in told
    for command in ("check tiny", "progress", "next", "update", f"check {tiny.path}"):
        assert shell(command) in (0, 1), shell.err
    if kind != "dangling":  # in which place `update` has put the starter
        assert shell("reset tiny --json") == 0
        backup = Path(json.loads(shell.out)["backup"])
        assert os.path.lexists(backup)
        assert kind != "folder" or (backup / "kept").read_text() == "mine"
    assert tiny.path.read_text() == render_starter(tiny)


@pytest.mark.parametrize("content", ["# é".encode("utf-16"), "# é".encode("latin-1"), b"\x00\xff\r\n", b""])
def test_reset_keeps_every_byte(content: bytes, tiny: Exercise, shell: Shell) -> None:
    tiny.path.write_bytes(content)
    assert shell("reset tiny --json") == 0
    assert Path(json.loads(shell.out)["backup"]).read_bytes() == content
    assert tiny.path.read_text() == render_starter(tiny)


@pytest.mark.parametrize("line", ["from learnvllm.architecture.math_utils import cdiv",
                                  "from learnvllm.architecture.math_utils import *"])  # fmt: skip
def test_the_references_own_passes_nothing(line: str, tiny: Exercise, shell: Shell) -> None:
    tiny.path.write_text(f"{line}\n")
    assert shell("check tiny --json") == 1
    told = json.loads(shell.out)
    assert told["message"].startswith("exercise.py imports the reference's cdiv instead of defining it.")
    assert told["points"] == 0


def test_passed_leaves_out_what_cannot_run(
    tiny: Exercise, write_exercise: Callable[..., Path], shell: Shell, graded: dict[str, Any]
) -> None:
    other = write_exercise("other", id='"architecture.other"') / "exercise.py"
    for path, text in ((tiny.path, MINE), (other, "cdiv = lambda a, b: -(-a // b)\n")):
        path.write_text(text)
        graded["hash"] = file_hash(path)
        assert shell(f"check {path.parent.name}") == 0
    selection = select(["passed"])
    assert [plan.exercise.id for plan in selection.plans] == ["architecture.tiny"]
    assert selection.notes[0].startswith("architecture.other has passed and is left out all the same: ")
    with pytest.raises(StudyError, match="does not define cdiv"):
        select(["other"])
    tiny.path.write_text(MINE + "# changed\n")
    with pytest.raises(StudyError, match="is left out"):
        select(["passed"])


def test_update_goes_on_after_a_file_that_cannot_be_used(
    tiny: Exercise, write_exercise: Callable[..., Path], shell: Shell
) -> None:
    other = write_exercise("another", id='"architecture.another"') / "exercise.py"
    other.write_bytes(b"\xff\xfe")
    tiny.path.unlink()
    assert shell("update --json") == 1
    told = {done["id"]: done for done in json.loads(shell.out)["updates"]}
    assert told["architecture.another"]["outcome"] == "failed"
    assert "not UTF-8" in told["architecture.another"]["problem"]
    assert told["architecture.tiny"]["outcome"] == "replaced"
    assert shell("update") == 1
    assert "architecture.another: not updated. " in shell.out
    assert shell("update another") == 2


def test_one_broken_exercise_toml_does_not_disable_the_others(
    tiny: Exercise, write_exercise: Callable[..., Path], shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_exercise("broken", id='"architecture.broken"', points="0") / "exercise.toml"
    tiny.path.write_text(MINE)
    assert shell("check tiny") == 0, shell.err
    for line in ("progress", "next", "day 4"):
        assert shell(line) == 0, shell.err
    told = f"points = 0 must be above 0. `git checkout -- {files.shown(path)}` brings back the original."
    assert told in caplog.text
    assert shell("check broken") == 2
    assert told in shell.err
    with pytest.raises(StudyError, match="points = 0"):
        load_exercises()


def test_one_broken_quiz_does_not_disable_progress_and_day(
    tiny: Exercise, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("day: [\n")
    monkeypatch.setattr(quiz, "quiz_path", lambda day: broken)
    for command in ("progress", "day 1", "next", "journal 1"):
        assert shell(command) == 0, command
    assert shell("quiz 1") == 2
    assert "broken.yml, line 2: " in shell.err


def test_a_broken_grader_is_named(tiny: Exercise, shell: Shell) -> None:
    tiny.path.write_text(MINE)
    tiny.test_path.write_text("x = 1\ndef broken(:\n")
    assert shell("check tiny --json") == 1
    told = json.loads(shell.out)["message"]
    assert told.startswith("test_exercise.py, line 2: ")
    assert f"`git checkout -- {tiny.test_path}`" in told


def test_a_skip_says_why(tiny: Exercise, shell: Shell) -> None:
    tiny.path.write_text("import pytest\n\n\ndef cdiv(a, b):\n    pytest.skip('no time')\n")
    assert shell("check tiny") == 1
    assert "it was skipped: no time" in shell.out


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_points_that_are_no_number_are_refused(number: str, home: Path) -> None:
    home.mkdir()
    (home / "progress.toml").write_text(f'[exercises."a.b"]\nattempts = 1\npoints = {number}\n')
    with pytest.raises(StudyError, match=f"line 3: exercises.a.b.points: {number} is no number"):
        load_progress()


@pytest.mark.parametrize("limit", ["0", "-1", "inf", "nan", "x"])
def test_a_time_limit_is_a_number_above_0(limit: str, shell: Shell) -> None:
    with pytest.raises(SystemExit):
        shell(f"check --timeout={limit}")
    assert "is no number of seconds above 0" in shell.capsys.readouterr().err


def test_a_time_limit_of_ages_is_one(tiny: Exercise, shell: Shell) -> None:
    tiny.path.write_text(MINE)
    assert shell("check tiny --timeout 1e300") == 0, shell.out


def test_two_who_ask_for_a_hint_get_two(tiny: Exercise) -> None:
    """The second waits for the lock before it counts."""
    with ThreadPoolExecutor(1) as pool:
        with changing_progress() as state:
            second = pool.submit(record_hint, tiny)
            state.of(tiny.id).hints = 1
        assert second.result(30) == 2


def test_a_journal_keeps_its_line_ends_and_mark(tiny: Exercise, home: Path) -> None:
    path = home / "journal" / "day-01.md"
    path.parent.mkdir(parents=True)
    head = "---\r\nday: 1\r\ntitle: Architecture\r\ndate: 2026-01-31\r\nstatus: open\r\n---\r\n\r\nMine.\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + head.encode())
    journal.refresh(1)
    after = path.read_bytes()
    assert after.startswith(b"\xef\xbb\xbf---\r\n")
    assert b"\r\nMine.\r\n" in after
    assert after.count(b"\n") == after.count(b"\r\n")
    assert b"Tiny" in after
