"""Configuration and environment variables, from the code that declares them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing

from learnvllm.architecture import config, envs
from learnvllm.study.tables import code, markdown, table


def environment() -> str:
    """One row a variable of `learnvllm.architecture.envs.REGISTRY`."""
    rows = [
        (f"`{var.name}`", "—" if var.default is None else f"`{var.default}`", markdown(var.help))
        for var in envs.REGISTRY.values()
    ]
    return (
        "# Environment variables\n\n"
        "Declared once, in `learnvllm/architecture/envs.py` (upstream namesake: `vllm/envs.py`). "
        "A flag on the command line wins over its variable.\n\n"
        f"{table(('Variable', 'Default', 'Meaning'), rows)}\n"
    )


def configuration() -> str:
    """One section a dataclass of the config tree, one row a field, with the text below it in the source."""
    parts = [
        value
        for value in vars(config).values()
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == config.__name__
    ]
    return (
        "# Configuration\n\n"
        "The tree that says everything about an engine, from `learnvllm/architecture/config.py` "
        "(upstream namesake: `vllm/config/`). Each part is frozen and checked when it is made.\n\n"
        + "\n".join(section(part) for part in parts)
    )


def section(part: type) -> str:
    notes = field_notes(part)
    rows = [
        (f"`{f.name}`", code(type_of(f)), default_of(f), markdown(notes.get(f.name) or first_line(f)))
        for f in dataclasses.fields(part)
    ]
    intro = inspect.cleandoc(part.__doc__ or "")
    return f"## {part.__name__}\n\n{intro}\n\n{table(('Field', 'Type', 'Default', 'Meaning'), rows)}\n"


def type_of(field: dataclasses.Field[object]) -> str:
    """The annotation as written; an alias of a Literal is spelled out."""
    alias = getattr(config, str(field.type), None)
    spelled_out = typing.get_origin(alias) is typing.Literal
    return str(alias).replace("typing.", "") if spelled_out else str(field.type)


def first_line(field: dataclasses.Field[object]) -> str:
    """What the field's type says of itself, should it be a dataclass: the note of a field that has none."""
    kind = getattr(config, str(field.type), None)
    return (kind.__doc__ or "").partition("\n")[0] if dataclasses.is_dataclass(kind) else ""


def default_of(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "a fresh one"
    return "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"


def field_notes(part: type) -> dict[str, str]:
    """Field -> the string literal that stands right below it in the class body."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(part))).body[0]
    assert isinstance(body, ast.ClassDef)
    notes = {}
    for field, note in zip(body.body, body.body[1:]):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
            notes[field.target.id] = str(note.value.value)
    return notes
