"""Runs an application on a free port in a thread of this process, for tests that want both ends at hand."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI


@dataclass(frozen=True)
class RunningServer:
    url: str
    app: FastAPI
    loop: asyncio.AbstractEventLoop


@contextmanager
def running(app: FastAPI) -> Iterator[RunningServer]:
    """Serve `app` until the block ends."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5))
    loops: list[asyncio.AbstractEventLoop] = []
    started = threading.Event()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        task = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started and not task.done():
            await asyncio.sleep(0.005)
        started.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    try:
        yield RunningServer(f"http://127.0.0.1:{sock.getsockname()[1]}", app, loops[0])
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
