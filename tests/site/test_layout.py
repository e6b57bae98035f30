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


SCROLLED = """[...document.querySelectorAll('.md-typeset__scrollwrap')].filter(box =>
    box.scrollWidth > box.clientWidth && box.querySelectorAll('thead th').length < 6
).map(box => box.querySelector('thead').innerText)"""


def test_on_a_phone_only_a_matrix_scrolls(
    built_site: Path, open_page: Callable[..., Any], site_url: str
) -> None:
    tab = open_page("index.html", width=390)
    scrolled = {}
    for path in sorted(built_site.rglob("*.html")):
        name = path.relative_to(built_site).as_posix()
        if "<table" in path.read_text("utf-8"):
            tab.goto(f"{site_url}/{name}")
            if found := tab.evaluate(SCROLLED):
                scrolled[name] = found
    assert scrolled == {}


def test_a_matrix_keeps_its_first_column_and_its_marks_have_columns(open_page: Callable[..., Any]) -> None:
    tab = open_page("reference/kill_matrix.html", width=390)
    row = tab.locator("tbody tr").first
    first, last = row.locator("td").first, row.locator("td").last
    assert last.bounding_box()["y"] == first.bounding_box()["y"], "a row is a row"
    before = first.bounding_box()["x"]
    tab.evaluate("document.querySelector('.md-typeset__scrollwrap').scrollLeft = 999")
    tab.wait_for_timeout(50)
    assert last.bounding_box()["x"] < 390
    assert abs(first.bounding_box()["x"] - before) <= 17, "it stays while the others go by"


def test_letters_of_a_plot_can_be_read_on_a_phone(
    built_site: Path, open_page: Callable[..., Any], site_url: str
) -> None:
    plots = [
        path for path in sorted(built_site.rglob("*.html")) if "notebook-plot" in path.read_text("utf-8")
    ]
    assert plots
    tab = open_page(plots[0].relative_to(built_site).as_posix(), width=390)
    width = tab.locator(".notebook-plot").first.bounding_box()["width"]
    units = tab.evaluate("document.querySelector('.notebook-plot').viewBox.baseVal.width")
    assert width / units >= 0.95, "its letters have 10 units"


def test_marks_of_a_list_are_its_only_bullets(open_page: Callable[..., Any]) -> None:
    tab = open_page("log/progress.html")
    marked = tab.locator("li", has_text="☐").first
    assert marked.evaluate("li => getComputedStyle(li).listStyleType") == "none"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("topics/kv_cache/concepts.html", "KV cache: concepts"),
        ("topics/architecture/quiz.html", "Architecture: quiz"),
        ("zh/topics/architecture/concepts.html", "架构：概念"),
    ],
)
def test_the_header_of_a_scrolled_page_names_its_day(
    page: str, said: str, open_page: Callable[..., Any]
) -> None:
    tab = open_page(page)
    assert tab.locator("[data-md-component=header-topic]").inner_text().strip() == said


def test_a_chinese_reader_is_led_from_the_concepts_to_the_notebooks_and_back(
    open_page: Callable[..., Any],
) -> None:
    tab = open_page("zh/topics/architecture/concepts.html")
    for part in ("notebooks/", "notebooks/", "exercises"):
        tab.locator(".md-footer__link--next").click()
        tab.wait_for_url(lambda url, part=part: part in url)
        tab.wait_for_function("document.documentElement.lang === 'zh'")


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
