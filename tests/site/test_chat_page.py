"""The server's page for browsers: what it says below an answer, whole or stopped."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.site.conftest import ROOT

pytestmark = pytest.mark.browser

PIECE = b'data: {"choices": [{"delta": {"content": "one "}}]}\n\n'
END = b'data: {"choices": [], "usage": {"completion_tokens": 4}}\n\ndata: [DONE]\n\n'


class _Server(http.server.ThreadingHTTPServer):
    pieces = 4
    """Of an answer, before it ends; 0: never a word of it."""
    ends: threading.Event


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._begin("text/html")
        self.wfile.write((ROOT / "learnvllm/serving/landing.html").read_bytes())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._begin("text/event-stream")
        for _ in range(self.server.pieces):
            self.wfile.write(PIECE)
        if self.server.ends.wait(10):
            self.wfile.write(END)

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.ends = threading.Event()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.ends.set()
        server.shutdown()
        thread.join()


def ask(browser: Any, server: _Server) -> Any:
    tab = browser.new_page()
    tab.goto(f"http://127.0.0.1:{server.server_port}/")
    tab.fill("#text", "Count.")
    tab.press("#text", "Enter")
    return tab


def test_below_an_answer_stand_its_figures(browser: Any, server: _Server) -> None:
    server.ends.set()
    tab = ask(browser, server)
    said = tab.inner_text(".stats")
    assert said.startswith("first token after ")
    assert said.endswith(" tokens/s")
    tab.close()


def test_a_stopped_answer_says_so_and_how_long_it_took_to_begin(browser: Any, server: _Server) -> None:
    tab = ask(browser, server)
    tab.wait_for_function("document.querySelector('.assistant')?.textContent.startsWith('one')")
    tab.click("#send")
    said = tab.inner_text(".stats")
    assert said.startswith("stopped, first token after ")
    assert said.endswith(" ms"), "how many tokens, a server says at the end"
    assert tab.inner_text("#send") == "Send"
    tab.close()


def test_an_answer_stopped_before_its_first_word_is_gone_and_that_is_said(
    browser: Any, server: _Server
) -> None:
    server.pieces = 0
    tab = ask(browser, server)
    tab.wait_for_selector(".assistant")
    tab.click("#send")
    assert tab.inner_text(".stats") == "stopped"
    assert tab.locator(".assistant").count() == 0
    tab.close()
