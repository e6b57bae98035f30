"""The site, built once for all tests that look at it, and a browser with the network cut to look with."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_BROWSER = (
    "left out: there is no Chromium here. Get it: `apt-get install chromium` on Debian, or Google Chrome. "
    "With REQUIRE_BROWSER=1 this is a failure."
)

JOURNAL = """\
---
day: 1
title: Architecture
date: 2026-01-31
status: open
---

# Day 1: Architecture

## Summary

Preemption is [recomputation](nowhere.md), --8<-- and all.
"""


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A strict build of the whole site, with a learner's journal in it; the same one for every worker."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    site = shared / "site"
    with FileLock(shared / "site.lock"):
        if not site.is_dir():
            journal = shared / "study" / "journal" / "day-01.md"
            journal.parent.mkdir(parents=True, exist_ok=True)
            journal.write_text(JOURNAL, "utf-8")
            unfinished = shared / "site.part"
            build(unfinished, LEARNVLLM_STUDY_HOME=str(shared / "study"))
            unfinished.rename(site)
    return site


def build(folder: Path, config: Path = ROOT / "mkdocs.yml", **environ: str) -> None:
    """mkdocs, strictly. What it says is the failure's message."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(config), "-d", str(folder)],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "CI"} | {"NO_MKDOCS_2_WARNING": "1", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a tab that went on before it had everything


@pytest.fixture(scope="session")
def site_url(built_site: Path) -> Iterator[str]:
    """Where the built site is served, without a slash at the end."""
    handler = functools.partial(_Quiet, directory=str(built_site))
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")  # while it is there, its event loop runs, and nobody else can use asyncio.run
def browser() -> Iterator[Any]:
    """Headless Chromium that can reach no name and no other machine."""
    if CHROMIUM is None:
        if os.environ.get("REQUIRE_BROWSER"):
            pytest.fail(NO_BROWSER)
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any, site_url: str) -> Iterator[Callable[..., Any]]:
    """`open_page("reference/cli.html", width=390, dark=True)`: a tab with that page, loaded.

    The test fails when a page logs an error, raises, or asks for anything that is not the site's.
    """
    troubles: list[str] = []
    contexts = []

    def open_page(path: str, width: int = 1280, dark: bool = False) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.route(lambda url: not url.startswith(("data:", "blob:", site_url)), refuse)
        tab = context.new_page()
        watch(tab, troubles)
        tab.goto(f"{site_url}/{path}")
        return tab

    def refuse(route: Any) -> None:
        troubles.append(f"asked for {route.request.url}")
        route.abort()

    yield open_page
    for context in contexts:
        context.close()
    assert not troubles, "\n".join(troubles)


def lost(request: Any) -> bool:
    """Not merely given up because the tab went on to the next page."""
    return bool(request.failure != "net::ERR_ABORTED")


def watch(tab: Any, troubles: list[str]) -> None:
    """Note down whatever goes wrong in a tab."""
    tab.on("console", lambda said: said.type == "error" and troubles.append(f"{tab.url}: {said.text}"))
    tab.on("pageerror", lambda error: troubles.append(f"{tab.url}: {error}"))
    tab.on("requestfailed", lambda asked: lost(asked) and troubles.append(f"{tab.url}: lost {asked.url}"))
    tab.on(
        "response",
        lambda answer: answer.status >= 400 and troubles.append(f"{tab.url}: {answer.status} {answer.url}"),
    )
