"""A request made of plain fields, and what was wrong with it in one sentence that names the field.

pydantic finds everything that is wrong and words it for programmers; whoever sent the request gets the first
finding, in the words of the API. No upstream namesake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic
from pydantic import BaseModel

from learnvllm.architecture.errors import ValidationError
from learnvllm.serving.content import shorten

RequestT = TypeVar("RequestT", bound=BaseModel)


def parse_request(model: type[RequestT], fields: dict[str, Any]) -> RequestT:
    """Build a request outside of HTTP, with the same checks.

    Raises:
        ValidationError: a field is unknown, or its value wrong.
    """
    try:
        return model.model_validate(fields)
    except pydantic.ValidationError as error:
        raise first_problem(error.errors()) from None


def first_problem(errors: Sequence[Any]) -> ValidationError:
    """The first of pydantic's findings, in one sentence."""
    first = errors[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ValidationError):
        return cause
    field = _spell(first["loc"])
    if not field:
        return ValidationError(f"The body must be a JSON object; it is {shorten(first['input'])}.")
    if first["type"] == "missing":
        return ValidationError(f"The field {field!r} is missing.", parameter=field)
    return ValidationError(
        f"{field}={shorten(first['input'])}: {first['msg']}.", parameter=field, value=first["input"]
    )


def _spell(location: Sequence[str | int]) -> str:
    """('stop', 0) -> stop[0]"""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
