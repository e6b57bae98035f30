"""The built site in headless Chromium, the network cut: pages open without error, on a phone, in the dark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learnvllm.study.site import nav
from tests.site.conftest import ROOT, build, watch

pytestmark = pytest.mark.browser

SECTIONS = ("", "topics", "reference", "notebooks", "zh", "log")
NOT_WIDER = "document.scrollingElement.scrollWidth <= window.innerWidth"


def pages_of(site: Path, section: str) -> list[str]:
    found = site.glob("*.html") if not section else (site / section).rglob("*.html")
    return sorted(path.relative_to(site).as_posix() for path in found if path.name != "404.html")


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section or "start")
def test_every_page_opens_and_fits_a_phone(
    section: str, built_site: Path, site_url: str, open_page: Callable[..., Any]
) -> None:
    names = pages_of(built_site, section)
    assert names, f"no page in {section or 'the first folder'}"
    tab = open_page(names[0], width=390)
    wide = []
    for name in names:
        tab.goto(f"{site_url}/{name}")
        tab.wait_for_function("document.querySelector('h1') !== null")
        if not tab.evaluate(NOT_WIDER):
            wide.append(name)
    assert not wide, f"wider than a phone's 390 pixels: {wide}"


def test_every_section_has_pages(built_site: Path) -> None:
    assert all(pages_of(built_site, section) for section in SECTIONS if section != "notebooks")


@pytest.mark.parametrize(
    ("page", "said"), [("", "This figure needs JavaScript."), ("zh/", "这张图需要 JavaScript。")]
)
def test_a_figure_without_scripts_says_what_it_needs(
    page: str, said: str, browser: Any, site_url: str
) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(f"{site_url}/{page}topics/architecture/concepts.html")
    shown = tab.evaluate("getComputedStyle(document.querySelector('.visualiser'), '::before').content")
    context.close()
    assert shown == f'"{said}"'


@pytest.mark.parametrize(("dark", "scheme"), [(False, "default"), (True, "slate")])
def test_the_page_follows_the_systems_colours(dark: bool, scheme: str, open_page: Callable[..., Any]) -> None:
    tab = open_page("architecture.html", dark=dark)
    tab.wait_for_function(f"document.body.getAttribute('data-md-color-scheme') === '{scheme}'")
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground.strip("rgba()").split(",")[:3])
    assert (brightness < 200) == dark


def test_the_reader_can_choose_the_colours(open_page: Callable[..., Any]) -> None:
    tab = open_page("architecture.html")
    tab.locator("label[title=Dark]").click()
    tab.wait_for_function("document.body.getAttribute('data-md-color-scheme') === 'slate'")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("preemption", "topics/scheduling/"),
        ("max_num_batched_tokens", "reference/configuration.html"),
        ("调度器", "zh/architecture.html"),
        ("词元", "reference/glossary.html"),
    ],
)
def test_search_finds(words: str, page: str, open_page: Callable[..., Any]) -> None:
    tab = open_page("index.html")
    tab.locator(".md-search__input").click()
    tab.locator(".md-search__input").fill(words)
    tab.locator(".md-search__input").press("End")  # the theme listens to keys
    found = tab.locator(f".md-search-result__link[href*='{page}']")
    found.first.wait_for(state="attached", timeout=20_000)


def test_the_language_can_be_switched_there_and_back(open_page: Callable[..., Any]) -> None:
    tab = open_page("architecture.html")
    tab.locator(".language-switch").click()
    tab.wait_for_url("**/zh/architecture.html")
    assert tab.evaluate("document.documentElement.lang") == "zh"
    assert tab.locator(".md-search__input").get_attribute("placeholder") == "搜索"
    tab.locator(".language-switch").click()
    tab.wait_for_url(lambda url: url.endswith("/architecture.html") and "/zh/" not in url)


def test_previous_and_next_lead_through_a_day(open_page: Callable[..., Any]) -> None:
    tab = open_page("topics/scheduling/index.html")
    tab.locator(".md-footer__link--next").click()
    tab.wait_for_url(lambda url: not url.endswith("topics/scheduling/index.html"))


def test_diagrams_are_drawn_here(tmp_path: Path, browser: Any) -> None:
    """On a site of one page, with all the network gone."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Page\n\n```mermaid\nflowchart LR\n  a[one] --> b[two]\n```\n", "utf-8")
    shutil.copytree(ROOT / "docs/overrides", docs / "overrides")
    shutil.copytree(ROOT / "docs/assets", docs / "assets")
    config = nav.plain_config([]).partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(config, "utf-8")
    build(tmp_path / "site", tmp_path / "mkdocs.yml")
    troubles: list[str] = []
    context = browser.new_context(offline=True)
    tab = context.new_page()
    watch(tab, troubles)
    tab.goto((tmp_path / "site/index.html").as_uri())
    tab.wait_for_function("!document.querySelector('pre.mermaid') && document.querySelector('div.mermaid')")
    assert tab.locator("div.mermaid").bounding_box()["height"] > 20
    context.close()
    assert not troubles


def test_pages_open_from_the_disk(built_site: Path, browser: Any) -> None:
    context = browser.new_context()
    tab = context.new_page()
    failed: list[str] = []
    tab.on("requestfailed", lambda request: failed.append(request.url))
    tab.goto((built_site / "topics" / "scheduling" / "index.html").as_uri())
    assert tab.locator("h1").first.is_visible()
    tab.locator(".md-footer__link--next").click()
    tab.wait_for_url(lambda url: not url.endswith("index.html"))
    tab.locator("h1").first.wait_for()
    context.close()
    assert not failed
