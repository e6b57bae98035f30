"""What a reader sees at the widths of a phone, a tablet and a laptop, and of pages opened from the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

PAGES_WITH_CODE = ("topics/scheduling/walkthrough.html", "topics/engine_core/concepts.html", "your-code.html")
CUT = """[...document.querySelectorAll('pre > code')].filter(code => {
    const longest = Math.max(...code.textContent.split('\\n').map(line => line.length));
    return code.scrollWidth > code.clientWidth && longest <= 110;
}).map(code => code.innerText)"""
COVERED = """[...document.querySelectorAll('pre')].filter(pre => {
    const button = pre.querySelector('.md-code__nav').getBoundingClientRect();
    const code = pre.querySelector('code').getBoundingClientRect();
    return button.left < code.right && button.bottom > code.top;
}).length"""
BROKEN = """[...document.querySelectorAll('td code')].flatMap(code => [...code.childNodes]).filter(piece => {
    const range = document.createRange();
    range.selectNodeContents(piece);
    const word = piece.nodeType === Node.TEXT_NODE && /^\\S*$/.test(piece.data);
    return word && range.getClientRects().length > 1;
}).map(piece => piece.data)"""
HIDDEN = """[...document.querySelectorAll('.md-typeset__scrollwrap')].filter(box =>
    box.scrollWidth > box.clientWidth).length"""


@pytest.mark.parametrize("width", [390, 1100, 1280])
def test_code_is_whole_and_the_copy_button_beside_it(
    width: int, open_page: Callable[..., Any], site_url: str
) -> None:
    tab = open_page(PAGES_WITH_CODE[0], width=width)
    for page in PAGES_WITH_CODE:
        tab.goto(f"{site_url}/{page}")
        tab.wait_for_selector(".md-code__nav")
        assert tab.evaluate(COVERED) == 0
        if width > 390:
            assert tab.evaluate(CUT) == []


def test_wide_code_shows_that_it_goes_on(open_page: Callable[..., Any]) -> None:
    tab = open_page(PAGES_WITH_CODE[0], width=390)
    assert "local" in tab.evaluate(
        "getComputedStyle(document.querySelector('pre > code')).backgroundAttachment"
    )


@pytest.mark.parametrize("width", [390, 1100, 1280])
@pytest.mark.parametrize("page", ["topics/scheduling/upstream.html", "zh/topics/architecture/upstream.html"])
def test_a_table_of_paths_is_readable(width: int, page: str, open_page: Callable[..., Any]) -> None:
    tab = open_page(page, width=width)
    assert tab.evaluate(BROKEN) == []
    assert tab.evaluate(HIDDEN) == 0
    first, second = (tab.locator("tbody tr").first.locator("td").nth(n).bounding_box() for n in (0, 1))
    assert (second["y"] > first["y"]) == (width == 390), "one below the other on a phone"
    if width == 390:
        label = "getComputedStyle(document.querySelector('td'), '::before').content"
        assert tab.evaluate(label) in ('"Ours"', '"我们的代码"')


@pytest.fixture
def from_disk(browser: Any, built_site: Path) -> Any:
    """`from_disk("reference/cli.html", width)`: a tab with that page, opened as a file."""
    contexts = []

    def open_file(page: str, width: int = 1280) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
        tab = contexts[-1].new_page()
        tab.goto((built_site / page).as_uri())
        tab.wait_for_selector("html.js")
        return tab

    yield open_file
    for context in contexts:
        context.close()


@pytest.mark.parametrize(
    ("page", "home"),
    [
        ("index.html", "index.html"),
        ("topics/scheduling/concepts.html", "index.html"),
        ("zh/index.html", "zh/index.html"),
        ("zh/topics/architecture/concepts.html", "zh/index.html"),
    ],
)
def test_from_the_disk_the_logo_leads_to_the_start_page(
    page: str, home: str, from_disk: Callable[..., Any], built_site: Path
) -> None:
    tab = from_disk(page)
    logos = tab.eval_on_selector_all("a.md-logo", "all => all.map(a => a.href)")
    assert set(logos) == {(built_site / home).as_uri()}
    assert len(logos) == 2, "in the header and in the drawer"


@pytest.mark.parametrize("width", [390, 1280])
def test_from_the_disk_there_is_no_button_for_a_search_that_is_not_there(
    width: int, from_disk: Callable[..., Any], open_page: Callable[..., Any]
) -> None:
    button = ".md-header label[for=__search].md-header__button"
    tab = from_disk("topics/scheduling/concepts.html", width)
    assert not tab.locator(button).is_visible()
    assert open_page("index.html", width=390).locator(button).is_visible(), "a server has it"


def test_the_switch_of_languages_says_when_a_page_has_no_translation(open_page: Callable[..., Any]) -> None:
    tab = open_page("topics/scheduling/concepts.html")
    switch = tab.locator(".language-switch")
    assert switch.inner_text() == "中文首页"
    assert "本页尚无译文" in switch.get_attribute("title")
    assert switch.get_attribute("aria-label").startswith("中文首页")
    switch.click()
    tab.wait_for_url("**/zh/index.html")


@pytest.mark.parametrize("page", ["architecture.html", "reference/cli.html", "zh/architecture.html"])
def test_the_other_language_stands_once_in_the_header(page: str, open_page: Callable[..., Any]) -> None:
    tab = open_page(page)
    header = tab.inner_text(".md-header") + tab.inner_text(".md-tabs")
    assert header.count("中文") == 1
