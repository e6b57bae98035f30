"""A server's life: take the port, start the engine, serve, drain, leave with the right exit code.

The port is taken before the model loads, so that a taken one costs nothing. The first SIGTERM or SIGINT
drains: new requests get 503, running ones finish; a second one ends it at once. When the engine dies, all
clients get an error and the exit code is 1. Upstream namesake: vllm/entrypoints/launchers/launcher.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from learnvllm.architecture.errors import ConfigError
from learnvllm.serving.options import ServeOptions

if TYPE_CHECKING:
    import uvicorn

    from learnvllm.serving.engine_client import EngineClient
    from learnvllm.serving.middleware import ServerState
    from learnvllm.serving.renderer import Renderer

logger = logging.getLogger(__name__)

LAST_PORT = 65535
ENGINE_POLL_S = 0.2
ERRORS_TIMEOUT_S = 5.0
"""How long the errors of waiting clients may take to be sent."""


def bind(host: str, port: int) -> socket.socket:
    """Take the port now, without listening yet.

    Raises:
        ConfigError: it is taken, not allowed, or no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # a port in TIME_WAIT is free; elsewhere the option means something else
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError, ValueError) as error:  # ValueError: no name can be that long
        sock.close()
        raise _port_error(host, port, error) from None
    return sock


def _port_error(host: str, port: int, error: Exception) -> ConfigError:
    import errno

    reason = getattr(error, "errno", None)
    if reason == errno.EADDRINUSE:
        flag = f"--port {port + 1 if port < LAST_PORT else port - 1}"
        text = (
            f"Port {port} on {host} is already in use. Stop the other server, or choose another port: {flag} "
            f'(through make: make serve ARGS="{flag}").'
        )
    elif reason == errno.EACCES:
        text = f"Port {port} on {host} is not allowed for this user. Choose one from 1024 on, with --port."
    else:
        text = (
            f"The server cannot listen on {host}:{port}: {str(error).rstrip('.')}. Check --host and --port."
        )
    return ConfigError(text, parameter="port", value=port)


def serve(
    options: ServeOptions,
    build_engine: Callable[[], EngineClient],
    sock: socket.socket,
) -> int:
    """Start the engine, serve until told to stop, and return the exit code.

    Args:
        build_engine: blocks until the engine is ready; called in a thread.
        sock: from `bind`.
    """
    loop_factory = None
    with contextlib.suppress(ImportError):  # not on Windows
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        code = runner.run(_run(options, build_engine, sock))
    if code == 0:  # told to: of anything else the log has spoken
        _say("Stopped.")
    return code


async def _run(
    options: ServeOptions,
    build_engine: Callable[[], EngineClient],
    sock: socket.socket,
) -> int:
    began = time.perf_counter()
    signals = Signals()
    signals.install()
    importing = threading.Thread(target=_import_application, name="imports")  # while the engine starts
    importing.start()
    renderer: Renderer | None = None
    engine = await asyncio.to_thread(build_engine)
    try:
        importing.join()
        renderer = _make_renderer(options, engine)
        from learnvllm.serving.middleware import ServerState

        state = ServerState()
        server = _make_server(options, engine, renderer, state)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await _wait_until_started(server, serving)
        signals.begin_serving()
        print_banner(options, engine, sock, time.perf_counter() - began)
        exit_code = await _serve_until_told(options, engine, state, signals)
        server.should_exit = True
        await serving
        return exit_code
    finally:
        if renderer is not None:
            renderer.shutdown()
        await asyncio.to_thread(engine.shutdown)


def _import_application() -> None:
    for module in ("learnvllm.serving.api_server", "uvicorn.protocols.http.auto"):
        importlib.import_module(module)


def _make_renderer(options: ServeOptions, engine: EngineClient) -> Renderer:
    from learnvllm.serving.renderer import Renderer

    assert engine.tokenizer is not None
    return Renderer(engine.tokenizer, engine.config.max_model_len, options.chat_template)


def _make_server(
    options: ServeOptions, engine: EngineClient, renderer: Renderer, state: ServerState
) -> uvicorn.Server:
    import uvicorn

    from learnvllm.serving.api_server import build_app

    app = build_app(engine, renderer, state=state, api_keys=options.api_keys, cors=options.cors)
    config = uvicorn.Config(
        app,
        log_level=options.log_level,
        access_log=options.access_log,
        lifespan="off",
        server_header=False,
        # By then requests had --shutdown-timeout to finish; what is left is cancelled, which aborts it.
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )
    if options.log_level == "info":  # the banner says it better; requests are logged all the same
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # ours drain
    return server


async def _wait_until_started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
        if serving.done():
            await serving  # raises what went wrong
            raise ConfigError("The HTTP server ended before it had started; the log above says why.")


async def _serve_until_told(
    options: ServeOptions, engine: EngineClient, state: ServerState, signals: Signals
) -> int:
    """Wait for a signal or the engine's death, drain, and return the exit code."""
    told = asyncio.create_task(signals.received.wait())
    died = asyncio.create_task(_wait_for_death(engine))
    try:
        await asyncio.wait((told, died), return_when=asyncio.FIRST_COMPLETED)
        state.draining = True
        if told.done() and await _drained(state, died, options.shutdown_timeout):
            return 0
        state.closing.set()
        if not died.done():
            logger.warning("%d request(s) did not finish in time and are aborted.", state.in_flight)
            state.out_of_time.set()
            await _tell_everyone(state)
            return 0
        logger.error("%s Everyone waiting gets an error, and the server stops.", engine.dead_error)
        await _tell_everyone(state)
        return 1
    finally:
        told.cancel()
        died.cancel()


async def _tell_everyone(state: ServerState) -> None:
    """Let the errors of waiting clients be sent."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(state.idle.wait(), ERRORS_TIMEOUT_S)


async def _drained(state: ServerState, died: asyncio.Task[None], timeout: float) -> bool:
    """Let running requests finish; whether they did."""
    if state.in_flight:
        _say(
            f"Shutting down: waiting up to {timeout:g} s for {state.in_flight} running request(s). "
            "Press Ctrl-C again to stop at once."
        )
    else:
        _say("Shutting down: no request is running.")
    idle = asyncio.create_task(state.idle.wait())
    await asyncio.wait((idle, died), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    idle.cancel()
    return idle.done() and not idle.cancelled()


async def _wait_for_death(engine: EngineClient) -> None:
    while not engine.errored:
        await asyncio.sleep(ENGINE_POLL_S)


class Signals:
    """SIGTERM and SIGINT. While starting up, and from the second one on, they end the process at once."""

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self._serving = False

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._handle, number)
            except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
                with contextlib.suppress(ValueError):
                    signal.signal(number, lambda n, frame: loop.call_soon_threadsafe(self._handle, n))

    def begin_serving(self) -> None:
        self._serving = True

    def _handle(self, number: int) -> None:
        if number == signal.SIGINT and sys.stderr is not None and sys.stderr.isatty():
            _say("")  # the terminal has just written ^C
        if self._serving and not self.received.is_set():
            self.received.set()
        else:
            exit_at_once(128 + number)


def exit_at_once(code: int) -> NoReturn:
    """End this process and those it started, whatever they are doing."""
    for child in multiprocessing.active_children():
        child.kill()
    _say("Stopped at once.")
    os._exit(code)


# ------------------------------------------------------------------------------------------------ banner


def print_banner(options: ServeOptions, engine: EngineClient, sock: socket.socket, seconds: float) -> None:
    from learnvllm import __version__
    from learnvllm.serving.landing import curl_example

    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    name = engine.config.served_model_name
    curl = curl_example(url, name)
    if options.api_keys:
        curl = curl.replace(" -d ", ' -H "Authorization: Bearer $LEARNVLLM_API_KEY" \\\n  -d ')
    print(
        f"""
learnvllm {__version__} serves {name} (up to {engine.config.max_model_len} tokens); ready in {seconds:.1f} s

  Open   {url}        chat in the browser, and what else to try
  API    {url}/v1     for the OpenAI SDK (base_url){"; an API key is required" if options.api_keys else ""}
  Stop   Ctrl-C

{curl}
""",
        flush=True,
    )


def _say(text: str) -> None:
    """A line for the person at the terminal; that may be gone by now, which must not hold up the end."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
