"""Every link and file that a built page names is there, anchors too; nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from learnvllm.study.site.directives import GENERATORS

CODE = ("code", "pre", "script", "style", "svg")


class _Page(HTMLParser):
    """What a page links to, what it loads, and the anchors it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.words: list[str] = []
        """Of its text, code left out."""
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._code += tag in CODE
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        for key in ("src", "href", "data-src", "srcset"):
            value = given.get(key)
            if value and not value.startswith(("data:", "mailto:")):
                (self.links if tag == "a" else self.loads).append(value)

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in CODE

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.words.append(data)


@cache
def parse(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text("utf-8"))
    return page


def pages(site: Path) -> list[Path]:
    """404.html is shown at any address, so its links are absolute."""
    return [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]


def test_every_internal_link_leads_somewhere(built_site: Path) -> None:
    broken = []
    for path in pages(built_site):
        for link in (*parse(path).links, *parse(path).loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            lost = not target.is_file()
            if (
                anchor and not anchor.startswith("__") and target.suffix == ".html"
            ):  # the theme's own begin so
                lost = lost or anchor not in parse(target).anchors
            if lost:
                broken.append(f"{path.relative_to(built_site)}: {link}")
    assert not broken


def test_pages_load_nothing_from_elsewhere(built_site: Path) -> None:
    foreign = [
        f"{path.relative_to(built_site)}: {load}"
        for path in pages(built_site)
        for load in parse(path).loads
        if urlsplit(load).netloc
    ]
    assert not foreign


def test_figures_and_quizzes_bring_their_scripts_and_styles_once_and_other_pages_have_none(
    built_site: Path,
) -> None:
    for page, wanted in (
        ("topics/scheduling/concepts.html", {"visualiser.js", "visualiser.css"}),
        ("topics/scheduling/quiz.html", {"dom.js", "quiz_logic.js", "quiz.js", "quiz.css"}),
        ("reference/cli.html", set()),
    ):
        loads = [load for load in parse(built_site / page).loads if re.search(r"assets/(js|css)/", load)]
        assert sorted(load.rpartition("/")[2] for load in loads) == sorted(wanted), page


def test_no_directive_and_no_formula_was_left_over(built_site: Path) -> None:
    for path in pages(built_site):
        text = path.read_text("utf-8")
        assert '--8<-- "code:' not in text or path.name == "journal.html", path
        assert not [name for name in GENERATORS if f"<!-- {name} -->" in text], path
        words = "".join(parse(path).words)
        assert not re.search(r"\$\$|\$\\[a-z]|\$[^\s$]+\$", words), path
