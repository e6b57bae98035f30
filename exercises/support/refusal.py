"""What must be refused: by the exception that the exercise names, and a sentence for every other end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refuses(error: type[Exception], call: Callable[[], Any], rule: str) -> None:
    """Fail with `rule`, and what came instead, unless `call` raises `error`.

    Args:
        rule: which call it is, when, and that it must raise.
    """
    try:
        given_back = call()
    except NotImplementedError:  # a RuntimeError, too, but only says that the member is not written yet
        raise
    except error:
        return
    except Exception as other:
        said = f"{rule} It raised {type(other).__name__} instead: {other}"
        raise AssertionError(said).with_traceback(other.__traceback__) from None
    raise AssertionError(f"{rule} Nothing was raised, and {given_back!r} was returned.")
