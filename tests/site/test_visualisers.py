"""The figures in a browser: they play from the disk and from a server, by mouse and by keys, and tell what
happens.

The pages are made here, around the assets that the site ships, so that nothing has to be built for it.
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.site.conftest import ROOT, watch

pytestmark = pytest.mark.browser

DOCS = ROOT / "docs"
KINDS = ("scheduler", "blocks", "loop", "request")
PAGE = """<!doctype html><html lang="{lang}"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><link rel="stylesheet" href="{base}/css/visualiser.css">
<body data-md-color-scheme="{scheme}"><h1>A page</h1>
<div class="visualiser" data-kind="{kind}" data-src="{base}/traces/{kind}.json"></div>
<script src="{base}/js/visualiser.js"></script></html>"""

Open = Callable[..., Any]


@pytest.fixture
def figure(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """`figure("scheduler", "?scheduler-step=3", width=390)`: a page from the disk with one figure, ready."""
    troubles: list[str] = []
    contexts = []

    def open_figure(
        kind: str,
        address: str = "",
        width: int = 1000,
        scheme: str = "default",
        number: int = 1,
        lang: str = "en",
    ) -> Any:
        page = tmp_path / f"{kind}.html"
        html = PAGE.format(base=(DOCS / "assets").as_uri(), kind=kind, scheme=scheme, lang=lang)
        before, line, after = html.partition(next(x for x in html.splitlines() if "data-src" in x))
        page.write_text(before + line * number + after, "utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
        contexts.append(context)
        tab = context.new_page()
        watch(tab, troubles)
        tab.goto(page.as_uri() + address)
        tab.wait_for_function("!document.querySelector('.visualiser:not([data-state=ready])')")
        return tab

    yield open_figure
    for context in contexts:
        context.close()
    assert not troubles, "\n".join(troubles)


def counter(tab: Any) -> list[int]:
    """Where it stands, and the last step."""
    return [int(n) for n in tab.inner_text(".lv-counter").split("/")]


def caption(tab: Any) -> str:
    return str(tab.inner_text(".lv-caption"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_every_scenario_is_drawn_and_told(figure: Open, kind: str) -> None:
    tab = figure(kind)
    for scenario in tab.eval_on_selector_all(".lv-top option", "all => all.map(o => o.value)"):
        tab.select_option(".lv-top select", scenario)
        position, last = counter(tab)
        assert position == 0
        told = [caption(tab)]
        for _ in range(last):
            tab.click("button[aria-label='Next step']")
            told.append(caption(tab))
            assert tab.inner_text(".lv-stage").strip()
        assert counter(tab) == [last, last]
        assert all(told)
        assert kind == "blocks" or all(a != b for a, b in pairwise(told))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_at_390_pixels_nothing_hangs_over(figure: Open, kind: str, scheme: str) -> None:
    tab = figure(kind, width=390, scheme=scheme)
    for key in ("Home", "ArrowRight", "End"):
        tab.locator(".lv").press(key)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_nothing_shows_below_the_names_of_scrolled_lanes(figure: Open) -> None:
    tab = figure("loop", "?loop=sync&loop-step=14", width=390)
    assert tab.evaluate("document.querySelector('.lv-timeline-box').scrollLeft") > 40
    seen = tab.evaluate(
        """() => {
            const names = [...document.querySelectorAll('.lv-lane-name')], found = new Set();
            names[0].scrollIntoView();
            scrollBy(0, -200);
            const {left, right, top} = names[0].getBoundingClientRect();
            const {bottom} = names.at(-1).getBoundingClientRect();
            for (let y = top - 3; y < bottom; y += 1)
                for (let x = left + 1; x < right; x += 1)
                    found.add(document.elementFromPoint(x, y).className);
            return [...found];
        }"""
    )
    assert not [name for name in seen if name.startswith(("lv-tick", "lv-span", "lv-now", "lv-time "))], seen


def test_on_a_chinese_page_the_life_of_a_request_is_told_in_chinese(figure: Open) -> None:
    tab = figure("request", "?request-predict=1", lang="zh")
    tab.click("summary")
    tab.click("button[aria-label='下一步']")
    tab.click(".lv-skip")
    tab.uncheck(".lv-check input")
    for _ in range(counter(tab)[1]):
        english = tab.evaluate(
            """() => document.querySelector('.lv').innerText.replace(/“.*?”/gs, '').split('\\n')
                .filter(line => /[a-z]+ [a-z]+ [a-z]+/.test(line))"""
        )
        assert [line for line in english if "capital" not in line] == []
        tab.locator(".lv").press("ArrowRight")


def test_keys_step_jump_and_play(figure: Open) -> None:
    tab = figure("scheduler")
    tab.focus(".lv")
    last = counter(tab)[1]
    for key, position in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("Home", 0)):
        tab.keyboard.press(key)
        assert counter(tab)[0] == position
    tab.keyboard.press("Space")
    assert tab.get_attribute(".lv-caption", "aria-live") == "off"
    assert tab.get_attribute("button[aria-label=Pause]", "title") == "Pause"
    tab.wait_for_function("document.querySelector('.lv-slider').value >= 1")
    tab.keyboard.press("Space")
    assert tab.get_attribute(".lv-caption", "aria-live") == "polite"
    assert tab.get_attribute("button[aria-label=Play]", "title") == "Play"


@pytest.mark.parametrize("kind", KINDS)
def test_every_control_can_be_reached_and_has_a_name(figure: Open, kind: str) -> None:
    tab = figure(kind)
    tab.locator(".lv").press("End")
    nameless = tab.evaluate(
        """[...document.querySelectorAll('.lv button, .lv input, .lv select')].filter(e =>
            !(e.ariaLabel || e.labels?.length || e.textContent.trim().length > 1)).map(e => e.outerHTML)"""
    )
    assert nameless == []
    tab.focus(".lv")
    reached = set()
    tab.keyboard.press("Tab")
    while tab.evaluate("document.querySelector('.lv').contains(document.activeElement)"):
        reached.add(tab.evaluate("document.activeElement.ariaLabel ?? document.activeElement.type"))
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert not tab.evaluate("document.activeElement.closest('[aria-hidden=true]')"), (
            "a reader cannot see it"
        )
        tab.keyboard.press("Tab")
    assert {"Play", "Next step", "Back", "Step", "checkbox", "Speed"} <= reached


def test_predict_first_asks_then_shows_and_counts(figure: Open) -> None:
    tab = figure("scheduler")
    tab.check(".lv-check input")
    tab.click("button[aria-label='Next step']")
    assert counter(tab)[0] == 0
    assert tab.is_visible(".lv-question")
    wanted = tab.evaluate(
        """() => { const {frames} = learnvllm.kinds.scheduler;
            const {question} = frames(learnvllm.traces['scheduler.json'].scenarios[0])[1];
            return question.choices[question.answer]; }"""
    )
    assert tab.evaluate("document.activeElement.className") == "lv-panel"
    tab.get_by_role("button", name=wanted, exact=True).click()
    assert counter(tab)[0] == 1
    assert "Right:" in tab.inner_text(".lv-panel")
    assert "1 of 1 right" in tab.inner_text(".lv-panel")
    tab.keyboard.press("ArrowRight")
    tab.get_by_role("button", name="Just show me").click()
    assert counter(tab)[0] == 2
    while not tab.is_visible(".lv-question"):
        tab.keyboard.press("ArrowRight")
    before = counter(tab)[0]
    tab.keyboard.press("9")  # there is no ninth choice
    assert counter(tab)[0] == before
    tab.keyboard.press("1")
    assert counter(tab)[0] == before + 1
    assert "of 2 right" in tab.inner_text(".lv-panel")


def test_the_address_says_where_to_begin_and_follows(figure: Open) -> None:
    tab = figure("scheduler", "?scheduler=preemption&scheduler-step=8")
    assert tab.input_value(".lv-top select") == "preemption"
    assert counter(tab)[0] == 8
    assert "c gives way" in caption(tab)
    wrong = figure("scheduler", "?scheduler=nothing&scheduler-step=999")
    position, last = counter(wrong)
    assert position == last


def test_two_figures_of_a_kind_on_one_page_do_not_move_each_other(figure: Open) -> None:
    tab = figure("scheduler", "?scheduler2=prefix&scheduler2-step=3", number=2)
    first, second = tab.locator(".lv").all()
    assert first.locator(".lv-counter").inner_text().startswith("0 /")
    assert second.locator(".lv-counter").inner_text().startswith("3 /")
    assert second.locator("select").first.input_value() == "prefix"
    second.press("ArrowRight")
    assert first.locator(".lv-counter").inner_text().startswith("0 /")
    assert tab.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == 2


def test_the_table_tells_every_step_and_marks_the_present_one(figure: Open) -> None:
    tab = figure("blocks")
    tab.click(".lv-details summary")
    tab.locator(".lv").press("ArrowRight")
    last = counter(tab)[1]
    assert tab.locator(".lv-table-box tbody tr").count() == last + 1
    assert tab.locator("tr[aria-current=step]").get_attribute("data-step") == "1"


def test_from_a_server_the_recording_is_fetched_and_the_address_kept(browser: Any) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.startswith("/page"):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(
                    PAGE.format(base="/assets", kind="loop", scheme="default", lang="en").encode()
                )
            else:
                super().do_GET()

    troubles: list[str] = []
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(DOCS))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            tab = browser.new_page()
            watch(tab, troubles)
            tab.goto(f"http://127.0.0.1:{server.server_port}/page?q=1")
            tab.wait_for_selector(".visualiser[data-state=ready]")
            tab.locator(".lv").press("ArrowRight")
            assert tab.url.endswith("/page?q=1&loop=sync&loop-step=1")
            tab.close()
        finally:
            server.shutdown()
            thread.join()
    assert troubles == []


def test_a_recording_that_is_missing_is_said_in_place_of_the_figure(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    html = PAGE.format(base=(DOCS / "assets").as_uri(), kind="loop", scheme="default", lang="en")
    page.write_text(html.replace("traces/loop.json", "traces/none.json"), "utf-8")
    tab = browser.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector(".visualiser[data-state=failed]")
    assert "could not be loaded" in tab.inner_text(".visualiser")
    tab.close()
