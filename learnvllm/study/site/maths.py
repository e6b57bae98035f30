r"""Formulas as MathML: `$O(n^2)$` and `$$…$$` in Markdown become <math> when the site is built.

Browsers set MathML themselves: it needs no script, no font and no request, a screen reader reads it, and it
takes the page's colour. What counts as a formula is pandoc's and Jupyter's rule: no space within the dollars.
"""

from __future__ import annotations

import re
from functools import cache

from learnvllm.study.exercise import StudyError

_FORMULA = re.compile(
    r"""(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))   # code spans stay as they are
    | (?<!\\)\$\$(?P<block>.+?)\$\$
    | (?<![\\\w$])\$(?![\s$])(?P<inline>[^$\n]*?[^\s$\\])\$(?![\d$])""",
    re.VERBOSE | re.DOTALL,
)
_FENCE = re.compile(r"^[ >\t]*(`{3,}|~{3,})(.*)$")


def with_maths(markdown: str) -> str:
    """The same Markdown, with MathML for its formulas. Code is left alone. Raises StudyError."""
    if "$" not in markdown:
        return markdown
    return "".join(text if code else _FORMULA.sub(_replace, text) for code, text in split_code(markdown))


def split_code(markdown: str) -> list[tuple[bool, str]]:
    """Cuts Markdown into fenced code blocks (True) and what is between them (False)."""
    parts: list[tuple[bool, str]] = []
    buffer: list[str] = []
    fence = ""

    def flush(code: bool) -> None:
        if buffer:
            parts.append((code, "".join(buffer)))
            buffer.clear()

    for line in markdown.splitlines(keepends=True):
        found = _FENCE.match(line.rstrip("\n"))
        if not fence and found and not (found[1][0] == "`" and "`" in found[2]):
            flush(False)
            fence = found[1]
            buffer.append(line)
        elif fence and found and found[1].startswith(fence) and not found[2].strip():
            buffer.append(line)
            flush(True)
            fence = ""
        else:
            buffer.append(line)
    flush(bool(fence))
    return parts


def _replace(found: re.Match[str]) -> str:
    if found["code"] is not None:
        return found[0]
    block = found["block"]
    return mathml(block.strip(), "block") if block is not None else mathml(found["inline"], "inline")


@cache
def mathml(latex: str, display: str) -> str:
    """One formula. The result is on one line, and nothing in it means anything to Markdown."""
    from latex2mathml.converter import convert

    try:
        made = str(convert(latex, display=display))
    except Exception as error:  # the library has no common base for its errors
        raise StudyError(f"the formula {latex!r} cannot be read: {type(error).__name__} {error}") from None
    unknown = re.search(r"\\[A-Za-z]+", made)
    if unknown:
        raise StudyError(f"the formula {latex!r} cannot be read: there is no {unknown[0]}")
    return re.sub(r"[*_|`~\\\[\]]", lambda sign: f"&#{ord(sign[0])};", " ".join(made.split()))
