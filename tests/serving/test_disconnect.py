"""When a client hangs up its request is aborted, whatever it waited for; a draining server says so."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.serving.fake_server import FakeServer

BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 200}


def send(server: FakeServer, body: dict[str, Any]) -> socket.socket:
    """A request over a socket of our own, which can be closed at any moment."""
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)))
    content = json.dumps(body).encode()
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return sock


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["before the first token", "midway"])
@pytest.mark.parametrize(
    "prompt", ["hello", ["hello", "world", "again"]], ids=["one prompt", "three prompts"]
)
def test_hanging_up_aborts_everything_that_runs(
    fake_server: FakeServer, stream: bool, when: str, prompt: Any
) -> None:
    engine = fake_server.engine
    engine.token_seconds = 30 if when == "before the first token" else 0.02
    engine.aborted.clear()
    count = 1 if isinstance(prompt, str) else len(prompt)
    sock = send(fake_server, {**BODY, "prompt": prompt, "stream": stream})
    until(lambda: len(engine.running) == count)
    if when == "midway" and stream:
        assert b"200 OK" in sock.recv(4096)
    sock.close()
    until(lambda: not engine.running)
    assert len(engine.aborted) == count
    until(lambda: fake_server.state.in_flight == 0)


def test_closing_the_sdks_stream_aborts_the_request(sdk: openai.OpenAI, fake_server: FakeServer) -> None:
    fake_server.engine.token_seconds = 0.01
    fake_server.engine.aborted.clear()
    stream = sdk.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    next(iter(stream))
    stream.close()
    until(lambda: len(fake_server.engine.aborted) == 1)
    assert not fake_server.engine.running


def test_a_request_that_ends_by_itself_is_not_aborted(http: httpx.Client, fake_server: FakeServer) -> None:
    fake_server.engine.aborted.clear()
    for stream in (False, True):
        assert http.post("/v1/completions", json={**BODY, "stream": stream}).status_code == 200
    assert fake_server.engine.aborted == []


def test_a_failing_prompt_takes_its_siblings_along(http: httpx.Client, fake_server: FakeServer) -> None:
    fake_server.engine.fail_after = 3
    assert http.post("/v1/completions", json={**BODY, "prompt": ["a", "b", "c"]}).status_code == 500
    assert not fake_server.engine.running


def test_a_draining_server_finishes_what_runs_and_refuses_what_comes(
    http: httpx.Client, fake_server: FakeServer
) -> None:
    fake_server.engine.token_seconds = 0.05
    sock = send(fake_server, {**BODY, "max_tokens": 5, "stream": True})
    until(lambda: bool(fake_server.engine.running))
    fake_server.state.draining = True
    refused = http.post("/v1/completions", json=BODY)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server_shutting_down"
    assert refused.headers["retry-after"]
    assert http.get("/health").status_code == 503
    received = b""
    while b"[DONE]" not in received:
        received += sock.recv(4096)
    sock.close()
    until(lambda: fake_server.state.in_flight == 0)
    assert fake_server.state.idle.is_set()
