"""Starters are made from the reference: its code, with the bodies of the blank members taken out.

What the targets need from the rest of their module is imported from the reference, so that types keep their
identity; with nothing blanked the same rendering is the solution. Nobody keeps two versions of anything.
"""

from __future__ import annotations

import ast
import textwrap

import libcst as cst

from learnvllm.study.exercise import Blank, Exercise, StudyError
from learnvllm.study.mutants import apply_mutant, find_mutant
from learnvllm.study.reference_imports import WIDTH, header_imports
from learnvllm.study.sources import reference_path

Definition = cst.FunctionDef | cst.ClassDef


def render_starter(exercise: Exercise) -> str:
    """The text of `exercise.py` before the learner has touched it.

    Raises:
        StudyError: a target, a blank or the bug's mutant is not in the reference.
    """
    if exercise.bug:
        return apply_mutant(render_solution(exercise), find_mutant(exercise, exercise.bug.mutant))
    return _render(exercise, exercise.blanks)


def render_solution(exercise: Exercise) -> str:
    """The starter with nothing blanked: the reference's own code in the starter's frame."""
    return _render(exercise, ())


def solution_code(exercise: Exercise) -> str:
    """The same without the docstring on top."""
    imports, code = _parts(exercise, ())
    return "\n".join([imports, *code])


def _render(exercise: Exercise, blanks: tuple[Blank, ...]) -> str:
    imports, code = _parts(exercise, blanks)
    head = "\n\n".join(part for part in (_docstring(exercise), imports) if part)
    return "\n\n\n".join([head, *(text.rstrip("\n") for text in code)]) + "\n"


def _parts(exercise: Exercise, blanks: tuple[Blank, ...]) -> tuple[str, list[str]]:
    """The imports, and the source of each target."""
    module = cst.parse_module(reference_path(exercise.module).read_text("utf-8"))
    targets = _targets(module, exercise)
    code = [_code(module, target) for target in targets]
    imports = header_imports(module, exercise.module, set(exercise.symbols), _names_used(code))
    if blanks:
        blanker = _Blanker(blanks)
        code = [
            _code(module, blanked) for target in targets if (blanked := blanker.blank(target)) is not None
        ]
        unknown = [blank.member for blank in blanks if blank.member not in blanker.found]
        if unknown:
            raise StudyError(
                f"{exercise.id}: there is no member {', '.join(unknown)} to blank in its targets."
            )
    return imports, code


def _targets(module: cst.Module, exercise: Exercise) -> list[Definition]:
    """The targets in the order of the source."""
    wanted = set(exercise.symbols)
    found = [node for node in module.body if isinstance(node, Definition) and node.name.value in wanted]
    missing = wanted - {node.name.value for node in found}
    if missing:
        raise StudyError(
            f"{exercise.id}: {exercise.module} defines no class or function {', '.join(sorted(missing))}."
        )
    return found


def _code(module: cst.Module, node: Definition) -> str:
    """Source of a definition, with the comments directly above it; not what heads a section of the file."""
    above = list(node.leading_lines)
    while above and above[-1].comment is not None:
        above.pop()
    return module.code_for_node(node.with_changes(leading_lines=node.leading_lines[len(above) :]))


def _names_used(code: list[str]) -> set[str]:
    """Every name that the code mentions; attributes do not count, their objects do."""
    tree = ast.parse("\n\n".join(code))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _docstring(exercise: Exercise) -> str:
    """What the file says of itself on top."""
    facts = f"{exercise.level}, {exercise.minutes} minutes, {exercise.points} points"
    paragraphs = [f"{exercise.title.rstrip('.')} ({facts}).", exercise.summary]
    if exercise.out_of_scope:
        paragraphs.append(f"Not asked: {exercise.out_of_scope}")
    if exercise.bug:
        paragraphs.append("This file has a mistake in it. Find it and repair it.")
    last = [f"Read: {', '.join(f'docs/{page}' for page in exercise.reading)}"] if exercise.reading else []
    last.append(f"Check: learnvllm check {exercise.id}")
    body = "\n\n".join([*map(_filled, paragraphs), "\n".join(map(_filled, last))])
    body = body.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""{body}\n"""'


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False)


class _Blanker(cst.CSTTransformer):
    """Takes out the bodies of the members that `blanks` name. `found`: which of them there were."""

    def __init__(self, blanks: tuple[Blank, ...]) -> None:
        super().__init__()
        self._blanks = {blank.member: blank for blank in blanks}
        self._path: list[str] = []
        self.found: set[str] = set()

    def blank(self, node: Definition) -> Definition | None:
        """The definition without those bodies; None when it is itself left out."""
        result = node.visit(self)
        return result if isinstance(result, Definition) else None

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._path.append(node.name.value)

    def leave_ClassDef(self, original: cst.ClassDef, updated: cst.ClassDef) -> cst.ClassDef:
        member = ".".join(self._path)
        self._path.pop()
        if member in self._blanks:
            self.found.add(member)
        return updated

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self._path.append(node.name.value)
        return False  # what is defined inside a function is part of its body

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef | cst.RemovalSentinel:
        member, owner = ".".join(self._path), ".".join(self._path[:-1])
        self._path.pop()
        blank = self._blanks.get(member)
        if blank is None:
            blank = self._blanks.get(owner)
            if blank is None or not _has_code(original):  # an abstract method has nothing to write
                return updated
        else:
            self.found.add(member)
        if blank.omit:
            return cst.RemoveFromParent()
        width = WIDTH - 4 * (len(self._path) + 1)
        return updated.with_changes(body=_todo(original, member, blank.todo, width))


def _todo(function: cst.FunctionDef, member: str, todo: str, width: int) -> cst.IndentedBlock:
    """The docstring, what is to be done as a comment, and an error for whoever calls it before."""
    text = textwrap.wrap(" ".join(f"TODO: {todo}".split()), width - 2, break_long_words=False)
    comments = [cst.EmptyLine(comment=cst.Comment(f"# {line}")) for line in text]
    stop = cst.parse_statement(f'raise NotImplementedError("TODO: {member}")').with_changes(
        leading_lines=comments
    )
    docstring = _docstring_statement(function)
    return cst.IndentedBlock(body=[stop] if docstring is None else [docstring, stop])


def _docstring_statement(function: cst.FunctionDef) -> cst.SimpleStatementLine | None:
    first = function.body.body[0] if function.body.body else None
    if isinstance(first, cst.SimpleStatementLine) and function.get_docstring() is not None:
        return first.with_changes(leading_lines=())
    return None


def _has_code(function: cst.FunctionDef) -> bool:
    """Whether the body is more than a docstring, `...` or `pass`."""
    for statement in function.body.body:
        if isinstance(statement, cst.SimpleStatementLine):
            small = statement.body
        elif isinstance(statement, cst.BaseSmallStatement):
            small = [statement]
        else:
            return True
        for part in small:
            idle = isinstance(part, cst.Expr) and isinstance(
                part.value, cst.Ellipsis | cst.SimpleString | cst.ConcatenatedString
            )
            if not idle and not isinstance(part, cst.Pass):
                return True
    return False
