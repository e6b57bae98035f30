"""`--mine` and what it chooses; every refusal is one line and says what to do."""

from __future__ import annotations

import pytest

from learnvllm.study.exercise import StudyError
from learnvllm.study.overlay_select import select
from tests.study.overlay.conftest import Learner


def ids(selection) -> list[str]:
    return [plan.exercise.id for plan in selection.plans]


def test_passed_is_what_passed_as_it_is_now(learner: Learner) -> None:
    for name in ("free_queue", "token_budget"):
        learner.solve(name)
        learner.passes(name)
    learner.solve("preemption")  # never checked
    assert ids(select(["passed"])) == ["scheduling.token_budget", "kv_cache.free_queue"]
    learner.solve("free_queue", ("self.num_free_blocks -= 1", "self.num_free_blocks -= 2"))
    selection = select(["passed"])
    assert ids(selection) == ["scheduling.token_budget"]
    assert selection.notes == [
        "kv_cache.free_queue was changed since it passed and is left out: learnvllm check kv_cache.free_queue"
    ]
    learner.reset("token_budget")
    with pytest.raises(
        StudyError, match=r"^no exercise has passed as it is now.* kv_cache.free_queue was changed"
    ):
        select(["passed"])


def test_all_insists_that_what_is_written_has_passed(learner: Learner) -> None:
    learner.solve("free_queue")
    learner.passes("free_queue")
    assert ids(select(["all"])) == ["kv_cache.free_queue"]  # starters are nobody's code
    learner.solve("token_budget")
    with pytest.raises(
        StudyError, match=r"^scheduling.token_budget has not passed as it is now: learnvllm check"
    ):
        select(["all"])
    selection = select(["all,token_budget"])
    assert ids(selection) == ["scheduling.token_budget", "kv_cache.free_queue"]
    assert selection.unproved() == {"scheduling.token_budget"}


def test_named_ones_run_without_having_passed_but_not_unwritten(learner: Learner) -> None:
    learner.solve("free_queue")
    selection = select(["free_queue, kv_cache.free_queue"])
    assert ids(selection) == ["kv_cache.free_queue"]
    assert selection.unproved() == {"kv_cache.free_queue"}
    told = "token_budget cannot run, as Scheduler._get_prefill_budget and .*still TODO.*learnvllm check"
    with pytest.raises(StudyError, match=told):
        select(["token_budget"])


def test_nothing_to_run_says_how_to_come_to_something(learner: Learner) -> None:
    for words in (["passed"], ["all"]):
        with pytest.raises(StudyError, match="no exercise has passed as it is now.*learnvllm check ID"):
            select(words)


def test_a_prompt_taken_for_an_id_is_understood(learner: Learner) -> None:
    with pytest.raises(StudyError, match=r"no exercise 'Hello'.*a MODEL or PROMPT goes before"):
        select(["Hello"])


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ("nonsense", "learnvllm: LEARNVLLM_OVERLAY=nonsense: There is no exercise 'nonsense'"),
        ("token_budget", "still TODO"),
        ("passed", "no exercise has passed"),
    ],
)
def test_a_variable_that_makes_no_sense_is_one_line(learner: Learner, overlay: str, message: str) -> None:
    done = learner.try_python("import learnvllm", overlay)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("class FreeKVCacheBlockQueue:", "import sys; sys.exit(3)\n\n\nclass FreeKVCacheBlockQueue:"),
         "it calls sys.exit(3) (line "),
        (("class FreeKVCacheBlockQueue:", "nonsense\n\n\nclass FreeKVCacheBlockQueue:"),
         "NameError: name 'nonsense' is not defined (line "),
        (("class FreeKVCacheBlockQueue:", "class FreeKVCacheBlockQueue"), "line "),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line(
    learner: Learner, edit: tuple[str, str], message: str
) -> None:
    learner.solve("free_queue", edit)
    done = learner.cli("generate", "--mine", "free_queue", "--max-tokens", "1", "Hello")
    assert done.returncode == 2
    *told, error = done.stderr.splitlines()
    assert told in ([], ["Importing your code: free_queue"])  # what does not compile is not imported
    assert "exercise.py" in error
    assert message in error


def test_the_chat_with_a_server_has_no_code_to_exchange(learner: Learner) -> None:
    done = learner.cli("chat", "--url", "http://127.0.0.1:1", "--mine")
    assert done.returncode == 2
    assert (
        done.stderr == "learnvllm chat: --mine and --shadow belong to the server: learnvllm serve --mine.\n"
    )
