"""The imports of a starter: those of the reference module as far as its targets use them.

Other definitions of that module are imported from it, never copied: a block made by the learner's code is
the engine's own KVCacheBlock.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import libcst as cst

WIDTH = 110
OURS = 3

Import = cst.Import | cst.ImportFrom


def header_imports(module: cst.Module, name: str, targets: set[str], used: set[str]) -> str:
    """The import block for code of `module` (called `name`) that uses the names `used`.

    Names in `targets` are defined by the starter itself and not imported.
    """
    guards = [node for node in module.body if isinstance(node, cst.If) and _is_type_checking(node)]
    guarded = [line for guard in guards for line in _kept(_small(guard.body.body), used, "    ")]
    told = sorted({word for guard in guards for word in _defined(guard.body.body)} & used, key=_isort_key)
    if told:  # a name for annotations only
        guarded.append(_import_from(name, told, "    "))
    if guarded:
        used = used | {"TYPE_CHECKING"}
    sections: dict[int, list[str]] = {number: [] for number in range(4)}
    rest = sorted((used & _defined(module.body)) - targets, key=_isort_key)
    waiting = [_import_from(name, rest)] if rest else []
    for node in _small(module.body):
        if isinstance(node, Import):
            origin = _module_name(node)
            if _section(origin) == OURS and isinstance(node, cst.ImportFrom) and origin > name:
                sections[OURS] += waiting
                waiting = []
            sections[_section(origin)] += _kept([node], used)
    sections[OURS] += waiting
    blocks = [*sections.values(), ["if TYPE_CHECKING:", *guarded] if guarded else []]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _small(statements: Iterable[cst.CSTNode]) -> list[cst.BaseSmallStatement]:
    """The simple statements among them."""
    return [small for line in statements if isinstance(line, cst.SimpleStatementLine) for small in line.body]


def _kept(nodes: Sequence[cst.BaseSmallStatement], used: set[str], indent: str = "") -> list[str]:
    """The imports among `nodes`, each reduced to the names that are used."""
    lines = []
    for node in nodes:
        if not isinstance(node, Import) or isinstance(node.names, cst.ImportStar):
            continue
        future = isinstance(node, cst.ImportFrom) and _module_name(node) == "__future__"
        names = [alias for alias in node.names if future or _bound(alias) in used]
        if not names:
            continue
        if isinstance(node, cst.ImportFrom):
            lines.append(_import_from(_module_name(node), [_alias(alias) for alias in names], indent))
        else:
            lines += [f"{indent}import {_alias(alias)}" for alias in names]
    return lines


def _import_from(module: str, names: Sequence[str], indent: str = "") -> str:
    """In the house's format: on one line, or one name a line where that is too long."""
    line = f"{indent}from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"\n{indent}    {name}," for name in names)
    return f"{indent}from {module} import ({inner}\n{indent})"


def _defined(statements: Iterable[cst.CSTNode]) -> set[str]:
    """Names that a module's body binds by other means than an import at its top."""
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            names.add(statement.name.value)
        elif isinstance(statement, cst.SimpleStatementLine):
            for small in statement.body:
                if isinstance(small, cst.Assign):
                    names |= {n for target in small.targets for n in _target_names(target.target)}
                elif isinstance(small, cst.AnnAssign):
                    names |= _target_names(small.target)
        elif not (isinstance(statement, cst.If) and _is_type_checking(statement)):
            names |= _bound_inside(statement)  # try: import ... except ImportError: ...
    return names


def _bound_inside(statement: cst.CSTNode) -> set[str]:
    """Names bound by the blocks of a compound statement."""
    names: set[str] = set()
    for child in statement.children:
        if isinstance(child, cst.IndentedBlock):
            imports = [node for node in _small(child.body) if isinstance(node, Import)]
            for node in imports:
                if not isinstance(node.names, cst.ImportStar):
                    names |= {_bound(alias) for alias in node.names}
            names |= _defined(child.body)
        else:
            names |= _bound_inside(child)
    return names


def _target_names(target: cst.BaseExpression) -> set[str]:
    if isinstance(target, cst.Name):
        return {target.value}
    if isinstance(target, cst.Tuple | cst.List):
        return {name for element in target.elements for name in _target_names(element.value)}
    return set()


def _is_type_checking(statement: cst.If) -> bool:
    return isinstance(statement.test, cst.Name) and statement.test.value == "TYPE_CHECKING"


def _section(module: str) -> int:
    """__future__, standard library, others, ours: the order in which imports stand."""
    root = module.partition(".")[0]
    if root == "__future__":
        return 0
    return OURS if root == "learnvllm" else 1 if root in sys.stdlib_module_names else 2


def _module_name(node: Import) -> str:
    if isinstance(node, cst.ImportFrom):
        assert node.module is not None, "the reference has no relative imports"
        return _text(node.module)
    assert not isinstance(node.names, cst.ImportStar)
    return _text(node.names[0].name)


def _alias(alias: cst.ImportAlias) -> str:
    return _text(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT))


def _bound(alias: cst.ImportAlias) -> str:
    """The name that an import makes known."""
    if alias.asname is not None:
        return _text(alias.asname.name)
    return _text(alias.name).partition(".")[0]


def _text(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).strip()


def _isort_key(name: str) -> tuple[int, str, str]:
    """Constants, classes, the rest; within each without regard to case."""
    kind = 0 if len(name) > 1 and name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name.lower(), name
