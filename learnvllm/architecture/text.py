"""What text may cross our boundaries: whatever UTF-8 can carry."""

from __future__ import annotations


def is_utf8(text: str) -> bool:
    """False for a lone surrogate, which JSON may bring, or bytes on a command line that are no UTF-8.

    No tokenizer, message, header or hash takes one.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
