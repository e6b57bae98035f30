"""What of an exercise is the learner's: the members that were to be written, and any other they changed.

Found by comparing syntax trees of exercise.py and of the reference, whose code the starter repeats word for
word. Nothing is imported for it, so a file can be judged before it may do any harm.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from learnvllm.study.exercise import Exercise, StudyError, read_bytes
from learnvllm.study.failures import todo_members
from learnvllm.study.sources import reference_path
from learnvllm.study.subject import SourceError, parse_source

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Definition = FunctionNode | ast.ClassDef


@dataclass(frozen=True)
class Part:
    """One piece of the learner's code."""

    symbol: str
    """A class or function of the target module."""
    member: str | None = None
    """Of the class; None: the function, or the class as a whole."""

    def __str__(self) -> str:
        return self.symbol if self.member is None else f"{self.symbol}.{self.member}"


@dataclass(frozen=True)
class Plan:
    """What one exercise changes in its target module."""

    exercise: Exercise
    parts: tuple[Part, ...]
    todo: tuple[Part, ...]
    """Parts that still raise NotImplementedError("TODO…")."""
    code: tuple[str, ...]
    """The syntax tree of each part, as text."""

    def owns(self, symbol: str) -> list[str | None]:
        """The members of `symbol` that are theirs; [None] for a function, or for a class as a whole."""
        return [part.member for part in self.parts if part.symbol == symbol]


def make_plan(exercise: Exercise) -> Plan:
    """Compare exercise.py with the reference.

    Raises:
        StudyError: it is missing, is no Python, or lacks one of its targets; or the reference does.
    """
    mine, reference = _definitions(_parse(exercise)), _reference(exercise.module)
    parts: dict[Part, tuple[Definition, str]] = {}
    omitted = omitted_members(exercise)
    for symbol in exercise.symbols:
        node, theirs = mine.get(symbol), reference.get(symbol)
        if theirs is None:
            raise StudyError(f"{exercise.id}: {exercise.module} defines no class or function {symbol}.")
        if symbol in omitted and type(node) is not type(theirs):
            continue  # a helper of the reference's: theirs may be called otherwise, or be something else
        if node is None:
            raise StudyError(
                f"{exercise.path.name} of {exercise.id} does not define {symbol}: was it renamed or deleted? "
                f"`learnvllm reset {exercise.id}` brings the starter back (yours is kept)."
            )
        parts |= _parts(exercise, symbol, node, theirs)
    todo = tuple(part for part, (node, _) in parts.items() if todo_members(node))
    return Plan(exercise, tuple(parts), todo, tuple(code for _, code in parts.values()))


def omitted_members(exercise: Exercise) -> set[str]:
    """Symbols and `Class.method`s that the starter leaves out altogether."""
    return {blank.member for blank in exercise.blanks if blank.omit}


def check_conflicts(plans: Iterable[Plan]) -> None:
    """Raises StudyError when two exercises bring different code for one member."""
    owners: dict[tuple[str, str], dict[str | None, tuple[Exercise, str]]] = {}
    for plan in plans:
        for part, code in zip(plan.parts, plan.code):
            taken = owners.setdefault((plan.exercise.module, part.symbol), {})
            for member, (other, other_code) in taken.items():
                both = member == part.member and "" not in (code, other_code)  # neither only leaves it out
                whole = None in (member, part.member)
                if (both or whole) and code != other_code and other is not plan.exercise:
                    raise StudyError(
                        f"{other.id} and {plan.exercise.id} both change {part} of {plan.exercise.module}, "
                        f"each in another way. Run one of them: --mine {other.id}, or --mine "
                        f"{plan.exercise.id}."
                    )
            taken[part.member] = (plan.exercise, code)


# ------------------------------------------------------------------------------------------------ comparing


def _parse(exercise: Exercise) -> ast.Module:
    path = exercise.path
    if not path.is_file():
        raise StudyError(f"{path} is not there. `learnvllm reset {exercise.id}` brings the starter back.")
    try:
        return parse_source(path)
    except SourceError as error:
        raise StudyError(
            f"{exercise.id}: exercise.py cannot be used: {error}. `learnvllm check {exercise.id}` says more."
        ) from None


@cache
def _reference(module: str) -> dict[str, Definition]:
    return _definitions(ast.parse(read_bytes(reference_path(module))))


def _definitions(tree: ast.Module) -> dict[str, Definition]:
    """By name, without docstrings: they change nothing."""
    for node in ast.walk(tree):
        if isinstance(node, Definition) and len(node.body) > 1 and ast.get_docstring(node) is not None:
            del node.body[0]
    return {node.name: node for node in tree.body if isinstance(node, Definition)}


def _parts(
    exercise: Exercise, symbol: str, mine: Definition, theirs: Definition
) -> dict[Part, tuple[Definition, str]]:
    """Part -> where it stands and what it says."""
    asked = {blank.member for blank in exercise.blanks}
    if not (isinstance(mine, ast.ClassDef) and isinstance(theirs, ast.ClassDef)):
        is_theirs = symbol not in asked and _code([mine]) == _code([theirs])
        return {} if is_theirs else {Part(symbol): (mine, _code([mine]))}
    if _frame(mine) != _frame(theirs):
        return {Part(symbol): (mine, _code([mine]))}
    before, now = _members(theirs), _members(mine)
    if symbol in asked:
        asked |= {f"{symbol}.{name}" for name, nodes in before.items() if isinstance(nodes[0], FunctionNode)}
    names = [
        name for name in now if f"{symbol}.{name}" in asked or _code(now[name]) != _code(before.get(name))
    ]
    omitted = omitted_members(exercise)
    gone = [name for name in before if name not in now and f"{symbol}.{name}" not in omitted]
    holders = {name: ast.ClassDef(name, [], [], list(now.get(name, ())), []) for name in [*names, *gone]}
    return {Part(symbol, name): (node, _code(now.get(name))) for name, node in holders.items()}


def _frame(node: ast.ClassDef) -> list[str]:
    """What can only be changed with the class as a whole: bases, decorators, slots, fields."""
    parts: list[ast.AST] = [*node.bases, *node.keywords, *node.decorator_list]
    for line in node.body:
        names = _assigned(line)
        if isinstance(line, ast.AnnAssign) or "__slots__" in names:
            parts.append(line)
    return [ast.dump(part) for part in parts]


def _members(node: ast.ClassDef) -> dict[str, list[ast.stmt]]:
    """By name; a property and its setter are one member."""
    found: dict[str, list[ast.stmt]] = {}
    for line in node.body:
        if isinstance(line, Definition):
            found.setdefault(line.name, []).append(line)
        elif isinstance(line, ast.Assign):
            for name in _assigned(line):
                found.setdefault(name, []).append(line)
    return found


def _assigned(line: ast.stmt) -> Iterator[str]:
    targets = line.targets if isinstance(line, ast.Assign) else []
    return (target.id for target in targets if isinstance(target, ast.Name))


def _code(nodes: Iterable[ast.stmt] | None) -> str:
    """The syntax tree as text."""
    return "\n".join(map(ast.dump, nodes or ()))
