"""Text from outside: it may cross our boundaries if UTF-8 can carry it, and as a path it may begin with ~."""

from __future__ import annotations

from pathlib import Path


def is_utf8(text: str) -> bool:
    """False for a lone surrogate, which JSON may bring, or bytes on a command line that are no UTF-8.

    No tokenizer, message, header or hash takes one.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_path(text: str) -> Path:
    """The path that a shell would have made of it.

    Raises:
        ValueError: ~ names a user who does not exist or has no home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(str(error).rstrip(".")) from None
