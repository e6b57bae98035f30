"""The whole site as a tree of files: docs/ with its directives followed, the notebooks, the reference."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat

from learnvllm.study import notebooks
from learnvllm.study.exercise import StudyError
from learnvllm.study.site import DOCS, directives, nav, notebook_pages, pages, reference

NOT_PAGES = ("hooks/", "overrides/")
"""Folders of docs/ that are for mkdocs, not for readers."""


def site_tree() -> dict[str, str]:
    """Path -> text of every page and notebook; files of docs/ that are no Markdown stay where they are.

    Raises:
        StudyError: a page asks for what is not there.
        NotebookError: a notebook's cell raised.
    """
    tree = {}
    for path in sorted(DOCS.rglob("*.md")):
        name = path.relative_to(DOCS).as_posix()
        if not name.startswith(NOT_PAGES) and not name.endswith(".zh.md"):
            tree[name] = page_text(path.read_text("utf-8"), name)
    for name, make in reference.PAGES.items():
        tree[name] = make()
    tree |= _notebooks()
    return tree


def page_text(text: str, name: str) -> str:
    """A page of docs/ as the site shows it."""
    meta, body = pages.split_front_matter(text, f"docs/{name}")
    head = text[: len(text) - len(body)]
    lead = _lead(meta)
    if lead:
        body = re.sub(
            r"^(# .+)$", lambda heading: f"{heading[1]}\n\n{lead}", body, count=1, flags=re.MULTILINE
        )
    return head + directives.expand(body, name)


def _lead(meta: dict[str, object]) -> str:
    """What a page's front matter promises, for the reader."""
    parts = []
    if meta.get("outcome"):
        parts.append(f"**Afterwards you can** {str(meta['outcome']).strip().rstrip('.')}.")
    if meta.get("minutes"):
        parts.append(f"**Minutes:** {meta['minutes']}.")
    needed = meta.get("prerequisites")
    if needed:
        listed = ", ".join(map(str, needed)) if isinstance(needed, list) else str(needed)
        parts.append(f"**Before:** {listed.strip().rstrip('.')}.")
    return "" if not parts else '<div class="page-lead" markdown="1">\n\n' + " ".join(parts) + "\n\n</div>"


def _notebooks() -> dict[str, str]:
    paths = notebooks.find_notebooks()
    made = {}
    for path, notebook in zip(paths, notebooks.run_all(paths)):
        page = pages.notebook_path(path)
        made[page] = directives.expand(notebook_pages.notebook_markdown(notebook, path), page)
        made[page.removesuffix(".md") + ".ipynb"] = nbformat.writes(notebook)
    return made


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
