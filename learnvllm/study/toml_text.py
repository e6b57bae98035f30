"""A document of TOML as text: what `tomllib` reads, written back so that a person likes to read it.

The first three levels become `[tables]`, what lies deeper stays on one line. The standard library only reads
TOML; this writes the part of it that our state needs, and whatever else a newer version put there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TABLES_DEEP = 3


def dump(document: Mapping[str, Any]) -> str:
    """The document; `tomllib.loads(dump(d)) == d` for all that tomllib can read."""
    lines: list[str] = []
    _write_table(lines, (), document)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_table(lines: list[str], path: tuple[str, ...], table: Mapping[str, Any]) -> None:
    tables = {}
    if path and (not table or any(not _is_table(path, value) for value in table.values())):
        lines += ["", f"[{'.'.join(key(part) for part in path)}]"]
    for name, value in table.items():
        if _is_table(path, value):
            tables[name] = value
        else:
            lines.append(f"{key(name)} = {_value(value)}")
    for name, value in tables.items():
        _write_table(lines, (*path, name), value)


def _is_table(path: tuple[str, ...], value: Any) -> bool:
    return isinstance(value, Mapping) and len(path) < _TABLES_DEEP


def key(name: str) -> str:
    """A key, quoted where it must be."""
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key(name)} = {_value(item)}" for name, item in value.items())
        return "{ " + inside + " }" if inside else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"TOML has no {type(value).__name__}: {value!r}")
