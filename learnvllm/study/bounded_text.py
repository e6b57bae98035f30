"""The beginning and the end of a long text, and how much was left out: code may print for ever."""

from __future__ import annotations

import io


class Bounded(io.TextIOBase):
    """A text file that keeps only the first and the last `kept` characters written to it."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self._kept = kept
        self._head, self._tail, self._written = "", "", 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._written += len(text)
        room = self._kept - len(self._head)
        self._head += text[:room]
        if len(text) > room:
            self._tail = (self._tail + text[max(room, len(text) - self._kept) :])[-self._kept :]
        return len(text)

    def take(self) -> str:
        """What was kept, and begin anew."""
        left_out = self._written - len(self._head) - len(self._tail)
        gap = f"\n… {left_out:,} characters left out …\n" if left_out > 0 else ""
        text = self._head + gap + self._tail
        self._head, self._tail, self._written = "", "", 0
        return text


def cut(text: str, kept: int) -> str:
    """`text`; of one longer than `kept` the beginning and the end, and between them how much was left out."""
    if len(text) <= kept:
        return text
    bounded = Bounded(kept // 2)
    bounded.write(text)
    return bounded.take()
