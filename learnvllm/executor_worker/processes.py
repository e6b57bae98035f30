"""What the processes we spawn have in common: quiet signals, a log of their own, an end with their parent.

Used for workers (multiproc.py) and for the engine process (engine_core/core_proc.py).
Upstream namesake: vllm/utils/system_utils.py.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from learnvllm.architecture import envs

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def main_module_hidden(*functions: Callable[..., object] | None) -> Iterator[None]:
    """Keep processes started in the `with` block from importing the caller's script again, as spawn does.

    They need nothing of it, so a script works without an `if __name__ == "__main__"` guard, and what it
    imports is not loaded twice.

    Args:
        functions: what the process is given to call. One from the script itself needs the script after all.
    """
    main = sys.modules["__main__"]
    is_needed = any(function is not None and function.__module__ == "__main__" for function in functions)
    names = [] if is_needed else ["__spec__", "__file__"]
    saved = {name: getattr(main, name) for name in names if hasattr(main, name)}
    for name in saved:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(main, name, value)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Processes started in the `with` block inherit that Ctrl-C is blocked, so that it cannot interrupt their
    imports, before `set_up_process` has been reached. Here it takes effect after the block."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # spawn needs it; to start it unblocks SIGINT, whatever was before
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_process(process: BaseProcess, *functions: Callable[..., object] | None) -> None:
    """Start a process of ours; interrupted, leave none behind. `functions`: as for `main_module_hidden`."""
    try:
        with main_module_hidden(*functions), interrupts_held_back():
            process.start()
    except BaseException:
        if process.pid is not None:
            process.kill()
        raise


def set_up_process(name: str) -> None:
    """First thing in a new process: log lines that say whose they are; Ctrl-C is left to the parent, as it
    reaches the whole terminal."""
    logging.basicConfig(level=envs.get("LEARNVLLM_LOG_LEVEL"), format=f"%(levelname)s [{name}] %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with_parent(stop: Callable[[], None] | None = None, grace_s: float = 0.0) -> None:
    """From now on this process ends when its parent does, however that ends: nobody could reach it any more.

    Args:
        stop: asks the process, from another thread, to end in order.
        grace_s: seconds it gets for that.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        if stop is not None:
            stop()
            threading.Event().wait(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def be_killed_with_parent() -> None:
    """Linux: SIGKILL for this process when its parent ends. Unlike `end_with_parent` this also ends one that
    is stopped (SIGSTOP, a debugger) or hangs. "Parent" is the thread that started it: only for a process that
    was started by its parent's main thread."""
    if sys.platform == "linux":
        parent = multiprocessing.parent_process()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent.pid:  # gone before we asked
            os._exit(1)
