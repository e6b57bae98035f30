"""New starters: merged where they can be, and never at the cost of the learner's code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learnvllm.study import files, update
from learnvllm.study.checking import check
from learnvllm.study.exercise import Exercise, StudyError
from tests.study.loop.conftest import Shell

BASE = '"""Old."""\n\nimport a\n\n\ndef one():\n    raise NotImplementedError\n\n\ndef two():\n    return 2\n'
MINE = BASE.replace("    raise NotImplementedError", "    return 1  # mine")
NEW = BASE.replace("Old", "New").replace("return 2", "return 22")
CLASH = BASE.replace("    raise NotImplementedError", "    raise NotImplementedError('one')")


@pytest.fixture
def starter(tiny: Exercise, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the reference gives now; the learner began with BASE."""
    now = {"text": BASE}
    monkeypatch.setattr(update, "render_starter", lambda exercise: now["text"])
    update.keep_base(tiny)
    tiny.path.write_text(BASE, "utf-8")
    return now


def test_nothing_new(tiny: Exercise, starter: dict[str, str]) -> None:
    tiny.path.write_text(MINE, "utf-8")
    assert update.update(tiny).outcome == "unchanged"
    assert tiny.path.read_text() == MINE


def test_an_untouched_file_becomes_the_new_starter(tiny: Exercise, starter: dict[str, str]) -> None:
    starter["text"] = NEW
    assert update.update(tiny).outcome == "replaced"
    assert tiny.path.read_text() == NEW


def test_both_changes_are_merged_and_the_old_file_is_backed_up(
    tiny: Exercise, starter: dict[str, str]
) -> None:
    tiny.path.write_text(MINE, "utf-8")
    starter["text"] = NEW
    done = update.update(tiny)
    assert done.outcome == "merged"
    text = tiny.path.read_text()
    assert "return 1  # mine" in text
    assert "return 22" in text
    assert "New" in text
    assert done.backup is not None
    assert done.backup.read_text() == MINE
    assert update.update(tiny).outcome == "unchanged"  # the new starter is the base now


def test_what_git_has_merged_is_not_merged_again(tiny: Exercise, starter: dict[str, str]) -> None:
    both, conflicts = update.merge(MINE, BASE, NEW)
    assert not conflicts
    tiny.path.write_text(both, "utf-8")
    starter["text"] = NEW
    done = update.update(tiny)
    assert (done.outcome, done.backup) == ("unchanged", None)
    assert update.base_path(tiny).read_text() == NEW
    assert tiny.path.read_text() == both


def test_the_new_starter_in_place_is_what_they_begin_with(tiny: Exercise, starter: dict[str, str]) -> None:
    """However it came there: the next one replaces it, though it clashes with the change before."""
    tiny.path.write_text(CLASH, "utf-8")
    starter["text"] = CLASH
    assert update.update(tiny).outcome == "unchanged"
    starter["text"] = CLASH.replace("'one'", "'two'")
    assert update.update(tiny).outcome == "replaced"


def test_a_conflict_leaves_the_file_until_it_is_settled(
    tiny: Exercise, starter: dict[str, str], shell: Shell
) -> None:
    tiny.path.write_text(MINE, "utf-8")
    starter["text"] = CLASH
    for _ in range(2):  # reported again, as long as it is not settled
        assert shell("update tiny") == 1
        assert "tiny: the starter changed where you did" in shell.out
        assert tiny.path.read_text() == MINE
    proposal = files.study_home() / "updates" / "architecture.tiny.py"
    assert "<<<<<<< your code" in proposal.read_text()
    assert shell("update tiny --resolved") == 0
    assert shell("update tiny --json") == 0
    assert json.loads(shell.out)["updates"][0]["outcome"] == "unchanged"
    assert tiny.path.read_text() == MINE
    assert not proposal.exists()


def test_without_a_known_beginning_nothing_is_touched(tiny: Exercise, starter: dict[str, str]) -> None:
    update.base_path(tiny).unlink()
    tiny.path.write_text(MINE, "utf-8")
    starter["text"] = NEW
    done = update.update(tiny)
    assert done.outcome == "no-base"
    assert done.proposal is not None
    assert done.proposal.read_text() == NEW
    assert tiny.path.read_text() == MINE


def test_git_knows_what_a_learner_began_with(tiny: Exercise, starter: dict[str, str]) -> None:
    update.base_path(tiny).unlink()
    git = ["git", "-c", "user.name=l", "-c", "user.email=l@example.org"]
    for words in (["init", "-q"], ["add", "exercise.py"], ["commit", "-qm", "begin"]):
        subprocess.run([*git, *words], cwd=tiny.folder, check=True, capture_output=True)
    tiny.path.write_text(MINE, "utf-8")
    assert update.update(tiny).outcome == "unchanged"
    starter["text"] = NEW
    assert update.update(tiny).outcome == "merged"


def test_a_file_that_vanished_is_the_starter_again(tiny: Exercise, starter: dict[str, str]) -> None:
    tiny.path.unlink()
    assert update.update(tiny).outcome == "replaced"
    assert tiny.path.read_text() == BASE


def test_a_merge_that_is_no_python_is_a_conflict(tiny: Exercise, starter: dict[str, str]) -> None:
    """Both changes are fine by themselves and far apart; together an `else` has lost its `if`."""
    between = "".join(f"    x{n} = {n}\n" for n in range(9))
    old = f"if True:\n{between}else:\n    y = 1\n"
    mine, new = old.replace("if True:\n", "for _ in [1]:\n"), old + "z = 1\n"
    new = new.replace("else:\n    y = 1\n", "elif x0:\n    y = 1\n")
    files.write_text(update.base_path(tiny), old)
    tiny.path.write_text(mine, "utf-8")
    starter["text"] = new
    assert update.merge(mine, old, new)[1] is False
    assert update.update(tiny).outcome == "conflict"
    assert tiny.path.read_text() == mine


def test_no_git_is_said(tiny: Exercise, starter: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.path.write_text(MINE, "utf-8")
    starter["text"] = NEW
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StudyError, match="git is not installed"):
        update.update(tiny)
    assert tiny.path.read_text() == MINE


def test_reset_brings_the_starter_back_and_says_where_the_code_is(
    tiny: Exercise, starter: dict[str, str], shell: Shell
) -> None:
    tiny.path.write_text(MINE, "utf-8")
    assert shell("reset tiny") == 0
    assert tiny.path.read_text() == BASE
    assert [path.read_text() for path in backups(tiny)] == [MINE]
    assert files.shown(backups(tiny)[0]) in shell.out.replace("\n", "")
    tiny.path.write_text(NEW, "utf-8")
    assert shell("reset tiny --json") == 0
    assert Path(json.loads(shell.out)["backup"]).read_text() == NEW
    assert len(backups(tiny)) == 2  # within one second
    assert shell("reset tiny") == 0  # nothing of theirs is in it
    assert len(backups(tiny)) == 2
    assert "had passed" not in shell.out


@pytest.mark.parametrize("change", [update.reset, update.update])
def test_two_who_replace_a_file_do_it_one_after_the_other(
    change: Callable[[Exercise], object], tiny: Exercise, starter: dict[str, str]
) -> None:
    """Or the second might copy the starter that the first has written over the first's copy of their code."""
    starter["text"] = NEW
    with ThreadPoolExecutor(1) as pool:
        with files.locked(update.base_path(tiny)):
            second = pool.submit(change, tiny)
            assert wait([second], timeout=0.2).not_done
            tiny.path.write_text(MINE, "utf-8")
        second.result(30)
    assert [path.read_text() for path in backups(tiny)] == [MINE]


def test_reset_says_that_the_pass_is_gone(tiny: Exercise, graded: dict[str, Any], shell: Shell) -> None:
    check(tiny)
    assert shell("reset tiny") == 0
    assert "That it had passed no longer counts" in shell.out
    assert shell("reset tiny") == 0
    assert "had passed" not in shell.out


def backups(exercise: Exercise) -> list[Path]:
    return sorted((files.study_home() / "backups" / exercise.id).glob("*.py"))


LINES = st.lists(st.sampled_from(["a = 1", "b = 2", "c = 3", "", "d = (", ")", "<<<<<<<"]), max_size=8)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=LINES, mine=LINES, new=LINES)
def test_the_learners_code_is_always_somewhere(
    tiny: Exercise, starter: dict[str, str], base: list[str], mine: list[str], new: list[str]
) -> None:
    texts = ["\n".join(lines) + "\n" for lines in (base, mine, new)]
    files.write_text(update.base_path(tiny), texts[0])
    tiny.path.write_text(texts[1], "utf-8")
    starter["text"] = texts[2]
    done = update.update(tiny)
    now = tiny.path.read_text()
    assert now == texts[1] or (done.backup is not None and done.backup.read_text() == texts[1])
    if done.outcome in ("conflict", "no-base", "unchanged"):
        assert now == texts[1]
