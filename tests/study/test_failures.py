"""What a failure says to a beginner: the line that did not hold, who could not use their code, which call."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exercises.support.refusal import refuses
from exercises.support.sequences import difference
from learnvllm.kv_cache import invariants as of_blocks
from learnvllm.scheduling import invariants as of_requests
from learnvllm.study.failures import explain


def raised(code: str, path: Path, **names: Any) -> BaseException:
    """What `code` raises, as if it stood in that file."""
    path.write_text(code, "utf-8")
    with pytest.raises((AssertionError, AttributeError, TypeError)) as caught:
        exec(compile(code, str(path), "exec"), names)
    return caught.value


def test_an_assert_without_a_message_says_its_line(tmp_path: Path) -> None:
    error = raised("total = 3\nassert total == 4\n", tmp_path / "engine.py")
    told = explain(error, tmp_path / "exercise.py").message
    assert told == "`assert total == 4` does not hold (engine.py, line 2)"


def test_who_could_not_use_what_came_back_is_named(tmp_path: Path) -> None:
    error = raised("rows = None\nfirst = rows[0]\n", tmp_path / "test_exercise.py")
    told = explain(error, tmp_path / "exercise.py").message
    assert told.startswith("TypeError: 'NoneType' object is not subscriptable")
    assert told.endswith("  test_exercise.py, line 2: first = rows[0]")
    assert "not in your file" in told
    own = raised("rows = None\nfirst = rows[0]\n", tmp_path / "exercise.py")
    assert "not in your file" not in explain(own, tmp_path / "exercise.py").message


@pytest.mark.parametrize("module", [of_blocks, of_requests])
def test_every_invariant_says_what_is_broken(module: Any) -> None:
    """Graders run them on learners' code, and no rewriting of asserts reaches a module of the engine."""
    checks = [node for node in ast.walk(ast.parse(Path(module.__file__).read_text("utf-8")))
              if isinstance(node, ast.Assert)]  # fmt: skip
    assert checks
    assert [check.lineno for check in checks if check.msg is None] == []


def test_a_queue_that_counts_wrong_is_told_with_both_numbers() -> None:
    request = SimpleNamespace(request_id="a", num_prompt_tokens=5, num_computed_tokens=0,
                              status=of_requests.RequestStatus.WAITING)  # fmt: skip

    class Queue(list[Any]):
        num_prompt_tokens = 9

    config = SimpleNamespace(policy="fcfs", max_num_seqs=4)
    scheduler: Any = SimpleNamespace(
        running=[], waiting=Queue([request]), requests={"a": request}, scheduler_config=config
    )
    with pytest.raises(
        AssertionError, match="have 5 prompt tokens, and the queue's num_prompt_tokens says 9"
    ):
        of_requests.check_invariants(scheduler)


def test_what_must_be_refused_is_told_by_its_call() -> None:
    refuses(KeyError, lambda: {}["a"], "")
    no_block: Any = None
    rule = "popleft() of an empty queue must raise IndexError."
    with pytest.raises(
        AssertionError, match=r"must raise IndexError\. Nothing was raised, and 3 was returned"
    ):
        refuses(IndexError, lambda: 3, rule)
    with pytest.raises(AssertionError, match=r"IndexError\. It raised AttributeError instead: .*prev_free"):
        refuses(IndexError, lambda: no_block.prev_free, rule)

    def open_member() -> None:
        raise NotImplementedError("TODO: BlockPool.touch")

    with pytest.raises(NotImplementedError):  # a RuntimeError, and yet no refusal
        refuses(RuntimeError, open_member, "")


FORGOTTEN = """
class Queue:
    def __init__(self): self.list = []
    def __iter__(self) -> Iterator[int]:
        "A docstring."
        def inner() -> int: return 3
        inner()
    def peek(self) -> int: raise NotImplementedError("TODO: Queue.peek")
    def pop(self) -> int | None:
        if self.list: return self.list.pop()
    def walk(self) -> Iterator[int]: yield from self.list
    def add(self, n: int) -> None: self.list.append(n)
    def abstract(self) -> int: ...
    def refuse(self, n: int) -> int:
        if n: raise ValueError(n)
        raise KeyError
    def forget(self) -> "None": self.list = []
async def get() -> int: return None
"""


def test_functions_that_give_nothing_but_none_are_named_where_a_none_is_complained_of(tmp_path: Path) -> None:
    subject = tmp_path / "exercise.py"
    subject.write_text(FORGOTTEN, "utf-8")
    error = raised("rows = [None]\nlen(rows[0])\n", tmp_path / "test_exercise.py")
    told = explain(error, subject).message
    assert told.endswith("\n  in your file nothing but None comes from Queue.__iter__, get")
    other = raised("1 + ''\n", tmp_path / "test_exercise.py")
    assert "in your file nothing" not in explain(other, subject).message


def test_sequences_are_shown_from_where_they_differ() -> None:
    expected, got = list(range(20)), [*range(8), 9, 8, *range(10, 20)]
    assert difference(expected, got) == (
        "the first 8 agree, then [8, 9, 10, 11, 12, 13, …] is expected, and [9, 8, 10, 11, 12, 13, …] came"
    )
    assert difference([1], [2]) == "from the start [1] is expected, and [2] came"
    assert difference([1, 2], [1]) == "the first 1 agree, then [2] is expected, and [] came"
