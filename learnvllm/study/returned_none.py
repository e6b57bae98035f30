"""Which function of the learner's returned the None that an error complains of.

Python says "cannot unpack non-iterable NoneType object", and not whose None it was. The statement that raised
says it: its call of the function, or the variable that was last assigned from one.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

_NOTHING = object()


def complains_of_none(error: BaseException) -> bool:
    return isinstance(error, TypeError | AttributeError) and "NoneType" in str(error)


def who_returned_none(error: BaseException, subject: Path) -> str | None:
    """The function of the file `subject`, as `Class.name`; None where it is not the one that it can be."""
    if not complains_of_none(error):
        return None
    raised = _innermost(error.__traceback__)
    if raised is None:
        return None
    frame, position = raised.tb_frame, _position(raised)
    function = _function_around(frame, raised.tb_lineno)
    if function is None or position is None:
        return None
    found = {
        name
        for node in _suspects(function, position)
        for source in _sources(node, function, frame, raised.tb_lineno)
        if (name := _of_subject(source, frame, subject)) is not None
    }
    return found.pop() if len(found) == 1 else None


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _position(trace: TracebackType) -> tuple[int, int, int, int] | None:
    """Begin and end of the expression that raised: line, column, line, column."""
    positions = list(trace.tb_frame.f_code.co_positions())
    line, end_line, column, end_column = positions[trace.tb_lasti // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return line, column, end_line, end_column


def _function_around(frame: FrameType, line: int) -> ast.AST | None:
    """The syntax tree of the innermost function that holds the line, or of the whole file."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    around: ast.AST = tree
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            around = node if node.lineno <= line <= (node.end_lineno or 0) else around
    return around


def _suspects(function: ast.AST, position: tuple[int, int, int, int]) -> Iterator[ast.expr]:
    """The operands of the expression that raised: one of them is None."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and position in map(_place, node.targets):
            yield node.value  # what could not be unpacked
        elif isinstance(node, ast.For | ast.comprehension) and position == _place(node.iter):  # Python 3.12
            yield node.iter
        elif _place(node) == position:
            match node:
                case ast.Attribute() | ast.Subscript() | ast.Starred():
                    yield node.value
                case ast.For():
                    yield node.iter
                case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                    yield node.generators[0].iter
                case ast.BinOp():
                    yield from (node.left, node.right)
                case ast.UnaryOp():
                    yield node.operand
                case ast.Compare():
                    yield from (node.left, *node.comparators)
                case ast.Call():  # by a function that is not written in Python: len(None)
                    yield from node.args


def _place(node: ast.AST) -> tuple[Any, ...]:
    names = ("lineno", "col_offset", "end_lineno", "end_col_offset")
    return tuple(getattr(node, name, None) for name in names)


def _sources(node: ast.expr, function: ast.AST, frame: FrameType, line: int) -> Iterator[ast.expr]:
    """What gave the operand its value: itself, or, of a variable that is None, its last assignment."""
    if not isinstance(node, ast.Name):
        yield node
    elif frame.f_locals.get(node.id, _NOTHING) is None:
        assigned = [part for part in _assignments(function, node.id) if part.lineno < line]
        yield from sorted(assigned, key=lambda part: part.lineno)[-1:]


def _assignments(function: ast.AST, name: str) -> Iterator[ast.expr]:
    """Where a variable is assigned a value as a whole, or its part of a tuple's of the same length."""
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) or value is None:
            continue
        for target in targets:
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts))
            yield from (given for left, given in pairs if isinstance(left, ast.Name) and left.id == name)


def _of_subject(node: ast.expr, frame: FrameType, subject: Path) -> str | None:
    """The function whose result the expression is, if it stands in the file `subject`."""
    if isinstance(node, ast.Await):
        node = node.value
    called = _value(node.func if isinstance(node, ast.Call) else node, frame)
    if isinstance(called, property) and not isinstance(node, ast.Call):
        called = called.fget
    elif not isinstance(node, ast.Call):
        return None
    called = getattr(called, "__func__", called)
    code = getattr(called, "__code__", None)
    if not isinstance(code, CodeType) or Path(code.co_filename) != subject:
        return None
    return str(called.__qualname__)


def _value(node: ast.expr, frame: FrameType) -> Any:
    """What a name, or an attribute of one, stands for; nothing is run to find out."""
    match node:
        case ast.Name(id=name):
            return frame.f_locals.get(name, frame.f_globals.get(name))
        case ast.Attribute(value=inner, attr=name):
            return inspect.getattr_static(_value(inner, frame), name, None)
    return None


def never_give_a_value(subject: Path) -> list[str]:
    """The functions of a file that are to return something, and never do: a forgotten `return`, mostly."""
    try:
        tree = ast.parse(subject.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[str] = []
    for node in tree.body:
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for part in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and _forgets_its_value(part):
                found.append(owner + part.name)
    return found


def _forgets_its_value(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    said = ast.unparse(function.returns) if function.returns else "None"
    last = function.body[-1]
    open_or_abstract = isinstance(last, ast.Raise) or (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    )
    if said in ("None", "NoReturn", "Never") or open_or_abstract:
        return False
    return not any(_gives_a_value(node) for node in _own_nodes(function))


def _gives_a_value(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        return node.value is not None and not (
            isinstance(node.value, ast.Constant) and node.value.value is None
        )
    return isinstance(node, ast.Yield | ast.YieldFrom)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, and not in one within it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield node
            yield from _own_nodes(node)
