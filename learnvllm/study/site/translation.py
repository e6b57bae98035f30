"""Pages in Chinese: `concepts.zh.md` beside `concepts.md` becomes zh/…/concepts.md of the site.

Its links go to translated pages where there are any. It names, as `source_hash:`, the English text that it
was made from; once that text is another, the page says so at its top. After a translation was brought up to
date, `python -m learnvllm.study.site.translation FILE.zh.md …` writes the present hash.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from learnvllm.study.catalogue import DAYS
from learnvllm.study.exercise import StudyError
from learnvllm.study.quiz import quiz_path
from learnvllm.study.site import DOCS, maths, pages

SUFFIX = ".zh.md"
FOLDER = "zh/"
_LINK = re.compile(r"""(\]\(|\b(?:src|href|data-src)=")([^)\s"#:]+)(?=[)\s"#])""")

OUTDATED = """\
!!! warning "译文可能已过时"

    英文原文在本页翻译之后有过修改，内容以[英文版]({english})为准。
"""


def translated() -> dict[str, str]:
    """English page -> its translation, both as paths in the site's tree."""
    files = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*" + SUFFIX))
    return {name.removesuffix(SUFFIX) + ".md": FOLDER + name.removesuffix(SUFFIX) + ".md" for name in files}


def shown() -> dict[str, str]:
    """Translated pages, and the notebooks between them, which are in English: page -> the same in zh/."""
    there = translated()
    days = [day for day in DAYS if f"topics/{day.topic}/concepts.md" in there]
    return there | {page.path: FOLDER + page.path for day in days for page in pages.notebook_pages(day)}


def source_hash(page: Path) -> str:
    """What a translation names its source by: a hash of the English page, and of the quiz that it shows."""
    text = page.read_text("utf-8")
    if page.name == "quiz.md":
        text += "".join(quiz_path(d.number).read_text("utf-8") for d in DAYS if d.topic == page.parent.name)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def translated_source(name: str) -> str:
    """Markdown of a translation, ready for its place: links mended, banner and language added.

    Args:
        name: the English page in the tree.

    Raises:
        StudyError: there is no English page of that name.
    """
    other = shown()
    target = other[name]
    if not (DOCS / name).is_file():
        raise StudyError(f"docs/{_file_of(name)} translates docs/{name}, which is not there")
    meta, body = _read(name)
    body = mend_links(body, name, target, other)
    if meta.get("source_hash") != source_hash(DOCS / name):
        back = posixpath.relpath(name, posixpath.dirname(target))
        banner = OUTDATED.format(english=back)
        body = re.sub(r"(?m)^(# .+)$", lambda heading: f"{heading[1]}\n\n{banner}", body, count=1)
    meta = {**meta, "language": "zh", "translation": name.removesuffix(".md") + ".html"}
    return pages.with_front_matter(meta, body)


def mend_links(body: str, name: str, target: str, other: dict[str, str]) -> str:
    """Links as they would be beside the English page -> as they must be from `target`. Code is left alone."""

    def mended(found: re.Match[str]) -> str:
        if found[2].startswith("/"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[2]))
        return found[1] + posixpath.relpath(other.get(path, path), posixpath.dirname(target))

    return "".join(
        text if is_code or text.startswith("`") else _LINK.sub(mended, text)
        for is_code, part in maths.split_code(body)
        for text in re.split(r"(`[^`\n]+`)", part)
    )


def title(name: str) -> str:
    """Of a translation, by its English page."""
    return pages.read_page(DOCS / _file_of(name)).title


def outdated() -> list[str]:
    """English pages whose translation was made from another text."""
    return [name for name in translated() if not _is_current(name)]


def _is_current(name: str) -> bool:
    english = DOCS / name
    return english.is_file() and _read(name)[0].get("source_hash") == source_hash(english)


def _file_of(name: str) -> str:
    """Where the translation of an English page lies in docs/."""
    return name.removesuffix(".md") + SUFFIX


def _read(name: str) -> tuple[dict[str, Any], str]:
    file = _file_of(name)
    return pages.split_front_matter((DOCS / file).read_text("utf-8"), f"docs/{file}")


def mark_current(path: Path) -> None:
    """Write the English page's present hash into a translation. Raises StudyError."""
    if not path.name.endswith(SUFFIX):
        raise StudyError(f"{path} is no translation: its name should end in {SUFFIX}")
    english = path.with_name(path.name.removesuffix(SUFFIX) + ".md")
    if not english.is_file():
        raise StudyError(f"{english} is not there")
    meta, body = pages.split_front_matter(path.read_text("utf-8"), str(path))
    meta = {**meta, "source_hash": source_hash(english)}
    path.write_text(pages.with_front_matter(meta, body), "utf-8", newline="\n")


def main(arguments: Collection[str]) -> int:
    try:
        for name in arguments:
            mark_current(Path(name))
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not arguments:
        print("\n".join(f"outdated: docs/{name}" for name in outdated()) or "All translations are current.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
