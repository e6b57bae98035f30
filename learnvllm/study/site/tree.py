"""The whole site as a tree of files: docs/ with its directives followed, the notebooks, the reference."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import nbformat

from learnvllm.study import notebooks
from learnvllm.study.catalogue import DAYS, PAGES, find_notebooks
from learnvllm.study.exercise import StudyError
from learnvllm.study.site import (
    DOCS,
    directives,
    log,
    maths,
    nav,
    notebook_pages,
    pages,
    reference,
    translation,
    wide_tables,
    words,
)

NOT_PAGES = ("hooks/", "overrides/")
"""Folders of docs/ that are for mkdocs, not for readers."""


def site_tree(with_log: bool = False) -> dict[str, str]:
    """Path -> text of every page and notebook; files of docs/ that are no Markdown stay where they are.

    Args:
        with_log: the learner's progress and journal, too, where there are any.

    Raises:
        StudyError: a page asks for what is not there.
        NotebookError: a notebook's cell raised.
    """
    tree = {}
    translated = translation.translated()
    for path in sorted(DOCS.rglob("*.md")):
        name = path.relative_to(DOCS).as_posix()
        if not name.startswith(NOT_PAGES) and not name.endswith(translation.SUFFIX):
            tree[name] = page_text(path.read_text("utf-8"), name, translated.get(name))
    for name, target in translated.items():
        tree[target] = page_text(translation.translated_source(name), target)
    for name, make in reference.PAGES.items():
        tree[name] = FIRST_IN_SEARCH + make()
    tree |= _notebooks() | (log.log_pages() if with_log else {})
    return {
        name: wide_tables.with_labels(text) if name.endswith(".md") else text for name, text in tree.items()
    }


FIRST_IN_SEARCH = "---\nsearch:\n  boost: 4\n---\n\n"
"""Who types the name of a setting wants its line in the reference before the pages that mention it."""


def page_text(text: str, name: str, translated: str | None = None) -> str:
    """A page of docs/ as the site shows it.

    Args:
        name: its path in the tree.
        translated: that of its translation.
    """
    meta, body = pages.split_front_matter(text, f"docs/{name}")
    body = directives.expand(body, name, text.removesuffix(body).count("\n") + 1)
    if translated:
        meta = {**meta, "translation": translated.removesuffix(".md") + ".html"}
    place = directives.place_of(name)
    lead = _lead(meta, place)

    def head(heading: re.Match[str]) -> str:
        title = heading[1]
        if place.day is not None and title.lower() in PAGES:  # there are eleven of each
            title = f"{place.day.title}: {title.lower()}"
        return f"# {title}\n" + (f"\n{lead}\n" if lead else "")

    body = re.sub(r"(?m)^# (.+)\n", head, body, count=1)
    if place.day is not None and Path(name).stem in PAGES:  # the navigation says "Concepts" alone
        title, day = pages.heading(body), place.say(place.day.title)
        meta = {**meta, "title": title if title.startswith(day) else place.say("{}: {}").format(day, title)}
    return pages.with_front_matter(meta, body)


LEAD = {
    "en": ("**Outcome:** {}.", "**Minutes:** {}.", "**Before:** {}."),
    "zh": ("**学完之后：**{}。", "**用时：**{} 分钟。", "**先读：**{}。"),
}


def _lead(meta: dict[str, Any], place: directives.Place) -> str:
    """What a page's front matter promises, for the reader."""
    needed = meta.get("prerequisites") or []
    named = [_named(one, place) for one in ([needed] if isinstance(needed, str) else needed)]
    before = words.listed(named, place.say) if named else ""
    values = (meta.get("outcome"), meta.get("minutes"), before)
    texts = LEAD[meta.get("language", "en")]
    said = [text.format(str(value).strip().rstrip(".。")) for text, value in zip(texts, values) if value]
    lead = maths.with_maths("<br>\n".join(said))
    return f'<div class="page-lead" markdown="1">\n\n{lead}\n\n</div>' if said else ""


def _named(needed: str, place: directives.Place) -> str:
    """A page of docs/ as a link, other words as they are."""
    path = needed.partition("#")[0]
    if not path.endswith(".md"):
        return needed
    if not (DOCS / path).is_file():  # not written yet
        return f"`{path}`"
    if place.language == "zh" and path in translation.translated():
        return f"[{translation.title(path)}]({place.link(needed)})"
    day = directives.place_of(path).day
    label = pages.LABELS.get(Path(path).stem) if day else None
    title = f"{day.title}: {label.lower()}" if day and label else pages.read_page(DOCS / path).title
    return f"[{title}]({place.link(needed)})"


def _notebooks() -> dict[str, str]:
    paths = find_notebooks()
    made = {}
    chinese = translation.shown()
    for path, notebook in zip(paths, notebooks.run_all(paths)):
        page = pages.notebook_path(path)
        made[page] = notebook_page(notebook, path, page, chinese.get(page))
        made[page.removesuffix(".md") + ".ipynb"] = nbformat.writes(notebook)
        if page in chinese:
            made[chinese[page]] = notebook_page(notebook, path, chinese[page], page)
    return made


def notebook_page(notebook: Any, path: Path, page: str, other: str | None) -> str:
    """One that has run, as a page.

    Args:
        page: its path in the tree. In zh/ it is as English as elsewhere, but what is around it, and where its
            links lead, is Chinese: a reader of the day passes through it.
        other: the page in the other language.
    """
    place = directives.place_of(page)
    body = notebook_pages.notebook_markdown(notebook, path, place.say)
    day = next(day for day in DAYS if day.number == int(path.parent.name[3:5]))
    title = place.say("{}: {}").format(place.say(day.title), pages.heading(body))
    meta: dict[str, Any] = {"title": title}
    if other:
        meta["translation"] = other.removesuffix(".md") + ".html"
    if place.language == "zh":
        body = translation.mend_links(body, pages.notebook_path(path), page, translation.shown())
        meta |= {"language": "zh", "search": {"exclude": True}}
    return pages.with_front_matter(meta, directives.expand(body, page))


def write_site(out: Path) -> None:
    """Fill a folder that is not there yet, or is empty: docs/ and a mkdocs.yml that needs no plugin of ours.

    Raises:
        StudyError: there is something in the folder; a page asks for what is not there.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StudyError(f"{out} is there already. Name a folder that is empty or not there yet.")
    tree = site_tree()
    shutil.copytree(DOCS, out / "docs", ignore=shutil.ignore_patterns("*.md", "hooks", "__pycache__"))
    for name, text in tree.items():
        path = out / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", newline="\n")
    (out / "mkdocs.yml").write_text(nav.plain_config(tree), "utf-8", newline="\n")
