"""`learnvllm serve` in a process of its own, with a tiny random model, as a host runs it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

START_TIMEOUT_S = 240


@dataclass
class ServerProcess:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def engine(self) -> psutil.Process:
        """The engine core's process."""
        children = psutil.Process(self.process.pid).children()
        (engine,) = [c for c in children if "resource_tracker" not in " ".join(c.cmdline())]
        return engine

    def wait(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert values, f"{name} is not among the metrics"
        return sum(map(float, values))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def launch(model: Path | str, log: Path, *flags: str) -> ServerProcess:
    """Start a server without waiting for it."""
    port = free_port()
    command = [sys.executable, "-m", "learnvllm", "serve", str(model), "--port", str(port), *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=os.name == "posix"
        )
    return ServerProcess(process, f"http://127.0.0.1:{port}", log)


def wait_until_ready(server: ServerProcess) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        assert server.process.poll() is None, server.output()
        assert time.monotonic() < deadline, server.output()
        try:
            if httpx.get(f"{server.url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)


@contextmanager
def serving(model: Path | str, log: Path, *flags: str) -> Iterator[ServerProcess]:
    """A server that answers; killed with all its children at the end, if it still runs."""
    server = launch(model, log, *flags)
    try:
        wait_until_ready(server)
        yield server
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            try:
                server.process.wait(10)
            except subprocess.TimeoutExpired:
                for child in psutil.Process(server.process.pid).children(recursive=True):
                    child.kill()
                server.process.kill()
        server.process.wait()
