"""Reads fields of somebody else's JSON, each by name and type: what does not fit is a ModelLoadError.

A config.json may hold anything. `Fields` gives a number where a number is due or says which field of which
file is wrong, so that no parser behind it meets a value it did not expect. Missing and null mean the same.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from learnvllm.architecture.errors import ModelLoadError

T = TypeVar("T")
LARGEST = 2**31 - 1
"""No size, length or token id is larger: kernels index with int32."""


def read_json(path: Path) -> Fields:
    """The object in a JSON file.

    Raises:
        ModelLoadError: it cannot be read, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(
            f"{path} cannot be read as JSON: {error}.", parameter="model", value=str(path)
        ) from None
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path} must hold a JSON object.", parameter="model", value=str(path))
    return Fields(data, str(path))


class Fields:
    """An object's fields. Every method raises ModelLoadError for a value of another type or out of range.

    Args:
        values: the object.
        where: the file it comes from, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """A whole number in [least, most] (8.0 is one); required where there is no default."""
        value = self.optional_integer(name, least, most)
        if value is None:
            value = self._required(name, default)
        return value

    def optional_integer(self, name: str, least: int = 1, most: int = LARGEST) -> int | None:
        return None if name not in self else self.as_integer(name, self.values[name], least, most)

    def as_integer(self, name: str, value: Any, least: int, most: int = LARGEST) -> int:
        """Check a value found somewhere below the field `name`."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, value, "must be a whole number")
        if value < least:
            raise self.error(name, value, f"must be at least {least}")
        if value > most:
            raise self.error(name, value, f"must be at most {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0; required where there is no default."""
        value = self.optional_number(name)
        return self._required(name, default) if value is None else value

    def optional_number(self, name: str) -> float | None:
        if name not in self:
            return None
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, value, "must be a number")
        if not 0 < value <= 1e300 or not math.isfinite(value):
            raise self.error(name, value, "must be finite and above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, value, "must be true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(name, value, "must be a text")
        return value

    def items(self, name: str) -> list[Any]:
        """A list; [] where there is none."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, value, "must be a list")
        return value

    def section(self, name: str) -> Fields:
        """An object within; empty where there is none."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(name, value, "must be an object")
        return Fields(value, self.where)

    def error(self, name: str, value: Any, rule: str) -> ModelLoadError:
        return ModelLoadError(
            f"{self.where}: {name}={reprlib.repr(value)}: {name} {rule}.", parameter=name, value=value
        )

    def _required(self, name: str, default: T | None) -> T:
        if default is None:
            raise ModelLoadError(
                f"{self.where} lacks the field {name!r}.", parameter="model", value=self.where
            )
        return default
