"""Starters are the reference with holes: what is kept, what is imported, what is blanked."""

import ast
from collections.abc import Callable
from pathlib import Path

import libcst as cst
import pytest

import learnvllm
from learnvllm.study import starters
from learnvllm.study.catalogue import find_exercise
from learnvllm.study.exercise import Blank, Exercise, StudyError
from learnvllm.study.reference_imports import header_imports
from learnvllm.study.starters import render_solution, render_starter

PACKAGE = Path(learnvllm.__file__).parent
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "study" not in p.parts and p.name != "__main__.py")

REFERENCE = '''"""The reference."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction

try:
    import numpy
except ImportError:
    numpy = None

LIMIT: int = 3
_first, _second = 1, 2


class Item:
    """Made here, imported by the starter."""


# ------------------------------------------------- a section

# What a queue is for.
class Queue(Item):
    """Keeps items."""

    size: int = LIMIT

    def __init__(self) -> None:
        self.items: list[Item] = []

    @property
    def first(self) -> Item:
        """The first."""
        # the heap's root
        return self.items[0]

    async def put(
        self,
        item: Item,
        weight: Decimal = _first,  # a comment within
    ) -> None: heapq.heappush(self.items, item)

    def walk(self) -> Iterator[Item]:
        """
        Every item.

        Over several lines.
        """
        def inner(): return numpy
        yield from self.items

    def abstract(self) -> None:
        """Nothing to write."""
        ...


def helper() -> Fraction:
    return os.environ["x"]
'''


def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *blanks: Blank, solution: bool = False) -> str:
    (tmp_path / "reference.py").write_text(REFERENCE, "utf-8")
    monkeypatch.setattr(starters, "reference_path", lambda module: tmp_path / "reference.py")
    exercise = an_exercise("learnvllm.zoo.reference:Queue", blanks)
    return render_solution(exercise) if solution else render_starter(exercise)


def an_exercise(target: str, blanks: tuple[Blank, ...]) -> Exercise:
    return Exercise(
        id="zoo.queue",
        title="A queue",
        level="fill-in",
        minutes=5,
        points=2,
        summary='It says """quotes""" and \\n.',
        reading=("topics/zoo/concepts.md",),
        prerequisites=(),
        targets=(target,),
        out_of_scope="",
        blanks=blanks,
        hints=("a", "b", "c"),
        bug=None,
        order=1,
        day=1,
        folder=Path("exercises/day01_zoo/queue"),
    )


def test_a_body_is_blanked_and_all_else_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = rendered(monkeypatch, tmp_path, Blank("Queue.first", "Look at the root."))
    assert (
        '''    @property
    def first(self) -> Item:
        """The first."""
        # TODO: Look at the root.
        raise NotImplementedError("TODO: Queue.first")

    async def put(
        self,
        item: Item,
        weight: Decimal = _first,  # a comment within
    ) -> None: heapq.heappush(self.items, item)
'''
        in text
    )
    assert "# What a queue is for.\nclass Queue(Item):" in text
    assert "a section" not in text
    assert text.endswith("        ...\n")


def test_the_header_imports_what_the_solution_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """heapq is only needed by a blanked body: whoever pastes the body back has it."""
    text = rendered(monkeypatch, tmp_path, Blank("Queue", "All of it."))
    head = text.partition("\n\n\n")[0].partition('"""\n\n')[2]
    assert head == (
        "from __future__ import annotations\n\n"
        "import heapq\n"
        "from collections.abc import Iterator\n"
        "from typing import TYPE_CHECKING\n\n"
        "from learnvllm.zoo.reference import LIMIT, Item, _first, numpy\n\n"
        "if TYPE_CHECKING:\n"
        "    from decimal import Decimal"
    )


def test_blanking_a_class_blanks_every_method_that_does_something(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = rendered(monkeypatch, tmp_path, Blank("Queue", "All of it."))
    for member in ("__init__", "first", "put", "walk"):
        assert f'raise NotImplementedError("TODO: Queue.{member}")' in text
    assert "TODO: Queue.abstract" not in text
    assert "Over several lines." in text
    ast.parse(text)


def test_a_helper_can_be_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = rendered(monkeypatch, tmp_path, Blank("Queue.walk", "", omit=True), Blank("Queue.put", "Push."))
    assert "def walk" not in text
    assert "def walk" in rendered(monkeypatch, tmp_path, Blank("Queue.put", "Push."), solution=True)


def test_a_long_todo_is_wrapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = rendered(monkeypatch, tmp_path, Blank("Queue.first", "word " * 60))
    assert max(map(len, text.splitlines())) <= 110


def test_what_is_not_there_cannot_be_blanked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"no member Queue.last"):
        rendered(monkeypatch, tmp_path, Blank("Queue.last", "?"))
    exercise = an_exercise("learnvllm.architecture.math_utils:nothing", (Blank("nothing", "?"),))
    monkeypatch.undo()
    with pytest.raises(StudyError, match="defines no class or function nothing"):
        render_starter(exercise)
    with pytest.raises(StudyError, match="no module learnvllm.nowhere"):
        render_starter(an_exercise("learnvllm.nowhere:x", (Blank("x", "?"),)))


def test_a_broken_starter_is_the_reference_with_one_edit(
    exercises: Path, write_exercise: Callable[..., Path]
) -> None:
    folder = write_exercise(
        day="day04_kv_cache",
        level='"break-and-fix"',
        targets='["learnvllm.architecture.math_utils:cdiv"]',
        tail='[bug]\nmutant = "rounds down"\n',
    )
    mutant = '[[mutant]]\nname = "rounds down"\nwhy = "w"\nold = "-(a // -b)"\nnew = "a // b"\n'
    (folder / "mutants.toml").write_text(mutant, "utf-8")
    exercise = find_exercise("kv_cache.tiny")
    assert render_starter(exercise) == render_solution(exercise).replace("-(a // -b)", "a // b")
    assert "NotImplementedError" not in render_starter(exercise)
    (folder / "mutants.toml").write_text("", "utf-8")
    with pytest.raises(StudyError, match=r"no mutant 'rounds down', which \[bug\]"):
        render_starter(exercise)


def test_the_solution_has_the_very_types_of_the_engine(free_queue: Exercise, tmp_path: Path) -> None:
    from learnvllm.kv_cache.block_pool import KVCacheBlock

    namespace: dict[str, object] = {"__name__": "solution"}
    exec(compile(render_solution(free_queue), "solution.py", "exec"), namespace)
    assert namespace["KVCacheBlock"] is KVCacheBlock


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_any_definition_of_the_reference_can_become_an_exercise(path: Path) -> None:
    """The first of each module: its code comes through unchanged, and every name in it is imported."""
    module = ".".join(("learnvllm", *path.relative_to(PACKAGE).with_suffix("").parts))
    tree = ast.parse(path.read_text("utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    if not found:
        return
    name = found[0].name
    solution = ast.parse(render_solution(an_exercise(f"{module}:{name}", (Blank(name, "Do it."),))))
    kept = [node for node in solution.body if getattr(node, "name", None) == name]
    assert [ast.dump(node) for node in kept] == [ast.dump(node) for node in found if node.name == name]
    unknown = names_of_module(tree) & names_read(kept[0]) - names_of_module(solution)
    assert not unknown


def names_of_module(tree: ast.Module) -> set[str]:
    """Names bound at the top of a module, in whatever way."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.alias):
                names.add((part.asname or part.name).partition(".")[0])
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                names.add(part.id)
    return names


def names_read(tree: ast.AST) -> set[str]:
    """Names that a definition reads and does not bind itself."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes} - bound


def test_a_long_import_stands_one_name_a_line() -> None:
    names = [f"a_rather_long_name_{number}" for number in range(6)]
    source = f"from learnvllm.zoo import ({', '.join(names)})\n"
    text = header_imports(cst.parse_module(source), "learnvllm.x", set(), set(names))
    assert text == "from learnvllm.zoo import (\n" + "".join(f"    {name},\n" for name in names) + ")"
