"""Which functions of the learner's file give nothing but None, where an error complains of a None.

Python says "cannot unpack non-iterable NoneType object", and not whose None it was. A forgotten `return` is
the usual reason, and can be seen without running anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def complains_of_none(error: BaseException) -> bool:
    return isinstance(error, TypeError | AttributeError) and "NoneType" in str(error)


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
    said = ast.unparse(function.returns).strip("'") if function.returns else "None"
    last = function.body[-1]
    is_abstract = isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    if said in ("None", "NoReturn", "Never") or is_abstract:
        return False
    return not any(_gives_a_value(node) or isinstance(node, ast.Raise) for node in _own_nodes(function))


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
