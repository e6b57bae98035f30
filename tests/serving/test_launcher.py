"""A server's life as a process: how it starts, how it drains, and with which exit code it leaves."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from learnvllm.architecture.errors import ConfigError
from learnvllm.serving import launcher
from learnvllm.serving.middleware import DrainMiddleware, ServerState
from tests.serving.conftest import TINY_FLAGS
from tests.serving.real_server import ServerProcess, free_port, launch, serving, wait_until_ready

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@contextmanager
def fake_process(log: Path, token_seconds: float, timeout: float) -> Iterator[ServerProcess]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tests.serving.fake_server_process",
        str(port),
        str(token_seconds),
        str(timeout),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    server = ServerProcess(process, f"http://127.0.0.1:{port}", log)
    try:
        wait_until_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()


class Answer(threading.Thread):
    """A streamed completion, read in the background."""

    def __init__(self, server: ServerProcess, max_tokens: int, n: int = 1, begin: bool = True) -> None:
        super().__init__()
        self.server = server
        self.body = {"prompt": "hello", "max_tokens": max_tokens, "n": n, "stream": True, "ignore_eos": True}
        self.begun = threading.Event()
        self.text = ""
        self.start()
        assert not begin or self.begun.wait(30)

    def run(self) -> None:
        try:
            with httpx.stream(
                "POST", f"{self.server.url}/v1/completions", json=self.body, timeout=60
            ) as response:
                for piece in response.iter_text():
                    self.text += piece
                    self.begun.set()
        except httpx.HTTPError as error:
            self.text += repr(error)
        self.begun.set()


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    with fake_process(tmp_path / "log", token_seconds=0.05, timeout=30) as server:
        answer = Answer(server, max_tokens=30)
        server.process.terminate()
        deadline = time.monotonic() + 10
        while (
            refused := httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"})
        ).status_code != 503:
            assert time.monotonic() < deadline
        assert refused.json()["error"]["code"] == "server_shutting_down"
        assert server.wait() == 0, server.output()
        answer.join()
        assert answer.text.count("data: ") == 31  # every token, and [DONE]
        assert answer.text.endswith("data: [DONE]\n\n")
        assert "waiting up to 30 s for 1 running request" in server.output()
        assert server.output().endswith("Stopped.\n")


def test_what_takes_longer_than_the_shutdown_timeout_is_cut_off(tmp_path: Path) -> None:
    with fake_process(tmp_path / "log", token_seconds=0.5, timeout=0.2) as server:
        answers = [Answer(server, max_tokens=200), Answer(server, max_tokens=200, n=3)]
        body = {"prompt": ["hello", "hello"], "max_tokens": 200}
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=60)
            while "num_requests_running 4" not in httpx.get(f"{server.url}/metrics").text:
                time.sleep(0.01)
            server.process.terminate()
            assert server.wait(15) == 0
            assert whole.result().status_code == 503
        assert whole.result().json()["error"]["code"] == "server_shutting_down"
        for answer in answers:
            answer.join()
            *_, error, done, _ = answer.text.split("\n\n")
            assert "server_shutting_down" in error
            assert done == "data: [DONE]"
        assert "are aborted" in server.output()
        assert "Traceback" not in server.output()


def test_a_body_that_never_ends_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with fake_process(tmp_path / "log", token_seconds=0, timeout=0.2) as server:
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as client:
            client.settimeout(30)
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 500\r\nExpect: 100-continue\r\n\r\n{"
            )
            assert b"100 Continue" in client.recv(1000)  # the body is being read
            server.process.terminate()
            answer = b""
            while piece := client.recv(10000):
                answer += piece
        assert server.wait(15) == 0
        assert b" 503 " in answer
        assert b"server_shutting_down" in answer
        assert "Traceback" not in server.output()


async def test_a_client_that_does_not_read_is_given_up_without_a_traceback() -> None:
    state = ServerState()

    async def send_for_ever(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    for closing in (False, True):
        request = asyncio.create_task(DrainMiddleware(send_for_ever, state)({"type": "http"}, None, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        if closing:
            state.closing.set()
        request.cancel()  # as uvicorn does in the end
        (result,) = await asyncio.gather(request, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError) is not closing
    assert state.idle.is_set()


def test_ctrl_c_drains_too_and_a_second_one_ends_it_at_once(tmp_path: Path) -> None:
    with fake_process(tmp_path / "log", token_seconds=0.1, timeout=60) as server:
        answer = Answer(server, max_tokens=200)
        server.process.send_signal(signal.SIGINT)
        while "Shutting down" not in server.output():
            time.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        assert server.wait(5) == 130
        answer.join()
        assert server.output().endswith("Stopped at once.\n")


def test_an_idle_server_says_where_to_go_and_leaves_quietly(tmp_path: Path) -> None:
    with fake_process(tmp_path / "log", token_seconds=0, timeout=30) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.process.send_signal(signal.SIGINT)
        assert server.wait(10) == 0
        banner, _, said = server.output().partition("Shutting down: ")
    assert said == "no request is running.\nStopped.\n"
    assert f"Open   {server.url}" in banner
    assert f"{server.url}/v1" in banner
    assert "serves tiny" in banner
    assert "Ctrl-C" in banner
    assert "curl http" in banner
    assert "Traceback" not in said


# ---------------------------------------------------------------------------------------------- the port


def test_a_taken_port_is_one_clear_line_before_anything_loads(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "learnvllm", "serve", "/no/such/model", "--port", str(port)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"Port {port} on 127.0.0.1 is already in use" in result.stderr
    assert f'another port: --port {port + 1} (through make: make serve ARGS="--port' in result.stderr


def test_the_port_that_is_advised_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "taken")

    monkeypatch.setattr(launcher.socket.socket, "bind", taken)
    with pytest.raises(ConfigError, match="--port 65534 "):
        launcher.bind("127.0.0.1", 65535)


def test_a_terminal_that_is_gone_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "closed").open("w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    launcher._say("Stopped.")


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 70000), ("203.0.113.1", 8000), ("no such host", 8000)]
)
def test_an_address_that_cannot_be_is_refused(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="--host"):
        launcher.bind(host, port)


# -------------------------------------------------------------------------------------- the real engine


def test_an_engine_that_is_killed_takes_the_server_along_with_an_error_for_everyone(
    tiny_model: Path, tmp_path: Path
) -> None:
    with serving(tiny_model, tmp_path / "log", *TINY_FLAGS) as server:
        whole: list[Any] = []

        def ask() -> None:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as sdk:
                try:
                    body: Any = {"prompt": "a", "max_tokens": 900, "n": 64}
                    whole.append(sdk.completions.create(model="tiny-llama", **body))
                except openai.APIError as error:
                    whole.append(error)

        # Sixteen run at a time: of 64 choices each, however fast the engine is, nobody has all of them soon.
        streams = [Answer(server, max_tokens=900, n=64)]
        asking = threading.Thread(target=ask)
        asking.start()
        streams += [Answer(server, max_tokens=900, n=64, begin=False) for _ in range(2)]
        deadline = time.monotonic() + 60
        while server.metric("vllm:num_requests_waiting") < 150:  # of 240: all four requests are there
            assert time.monotonic() < deadline, server.output()
        server.engine().kill()
        assert server.wait() == 1, server.output()
        asking.join()
        for stream in streams:
            stream.join()
            assert '"error"' in stream.text
            assert "engine process has died" in stream.text
        assert isinstance(whole[0], openai.InternalServerError)
        assert "Traceback" not in server.output()


def test_a_model_that_cannot_be_loaded_is_one_clear_line(tmp_path: Path) -> None:
    server = launch(tmp_path, tmp_path / "log")
    assert server.wait() == 2
    assert "has no config.json" in server.output()
    assert len(server.output().splitlines()) == 1
