"""Sets learnvllm up: makes .venv, installs the pinned packages into it, fetches the embedded model.

`make serve` and `make test` call this with whatever Python the machine has, so it uses the standard library
only. It may be stopped at any point: the next call finds what is half-made, repairs it and goes on. When
nothing is left to do it returns in a fraction of a second.

    python3 scripts/setup.py --extras serve --model
"""

import sys

OLDEST, NEWEST = (3, 11), (3, 14)

if sys.version_info < OLDEST:  # before anything below that an older Python could not even define
    sys.exit(
        "learnvllm needs Python %d.%d or newer; this is %s (%s).\n"
        "  Debian/Ubuntu: apt install python3.11 python3.11-venv     macOS: brew install python@3.13\n"
        "  Another interpreter: make serve PYTHON=/path/to/python3.12"
        % (*OLDEST, sys.version.split()[0], sys.executable)
    )

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)  # not .venv's own, should .venv be active
STAMP = VENV / "learnvllm-setup.json"
LOG = VENV / "learnvllm-setup.log"
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
EDITABLE = "editable_mode=compat"
"""Have setuptools put the clone's path into .venv, not an import hook: started from the folder that holds the
clone, Python would take the clone's folder for a package of the same name before it asked the hook."""
GIB = 1024**3


class SetupError(Exception):
    """What went wrong and what to do about it, in words for the person at the terminal."""


# ------------------------------------------------------------------------------------------ what is there


def recipe() -> str:
    """A hash of all that decides which packages belong into .venv; style settings do not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = json.dumps([project["project"], project["build-system"], EDITABLE], sort_keys=True)
    return hashlib.sha256(wanted.encode() + (ROOT / "constraints.txt").read_bytes()).hexdigest()


def read_stamp() -> dict[str, object]:
    """What the last call left: {done, recipe, extras, root}. Empty where there is none, or a torn one."""
    try:
        stamp = json.loads(STAMP.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(extras: set[str], done: bool) -> None:
    stamp = {"done": done, "recipe": recipe(), "extras": sorted(extras), "root": str(ROOT)}
    scratch = STAMP.with_suffix(".tmp")
    scratch.write_text(json.dumps(stamp, indent=1), "utf-8")
    scratch.replace(STAMP)  # whole or not at all


def venv_version() -> tuple[int, int] | None:
    """(major, minor) of the Python in .venv, or None where it does not run or has no pip."""
    if not PYTHON.exists():
        return None
    code = (
        "import sys, importlib.util as u; print(*sys.version_info[:2]) if u.find_spec('pip') else sys.exit(1)"
    )
    try:
        answer = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, env=clean_env())
    except OSError:  # torn, or made for another machine
        return None
    if answer.returncode != 0:
        return None
    major, minor = answer.stdout.split()
    return int(major), int(minor)


def clean_env() -> dict[str, str]:
    """The environment without the variables that would make .venv's Python or pip act outside .venv."""
    meddling = {"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "VIRTUAL_ENV"}
    return {k: v for k, v in os.environ.items() if k not in meddling} | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


# ------------------------------------------------------------------------------------------------ the steps


def ensure_venv(python_was_chosen: bool) -> None:
    """A .venv whose Python runs; one that is broken, was moved or is of another Python is made anew."""
    version = venv_version()
    here = sys.version_info[:2]
    moved = read_stamp().get("root", str(ROOT)) != str(ROOT)
    if version and version >= OLDEST and not moved and not (python_was_chosen and version != here):
        return
    if VENV.exists():
        broken = "is of another Python" if version else "is unfinished or broken"
        say(f".venv {'was made elsewhere' if moved else broken}: making it anew")
        if VENV.is_symlink() or not VENV.is_dir():
            VENV.unlink()
        else:
            shutil.rmtree(VENV)
    if here > NEWEST:
        say(f"Python {here[0]}.{here[1]} is newer than the pinned packages were tried with: this may fail")
    check_venv_modules()
    with step(f"virtual environment .venv (Python {sys.version.split()[0]})"):
        made = subprocess.run(
            [BASE_PYTHON, "-m", "venv", str(VENV)], capture_output=True, text=True, env=clean_env()
        )
        if made.returncode != 0:
            shutil.rmtree(VENV, ignore_errors=True)
            raise SetupError(explain(made.stdout + made.stderr, "`python -m venv .venv` failed"))


def check_venv_modules() -> None:
    """Debian and Ubuntu ship Python without venv and ensurepip; say which package has them."""
    from importlib.util import find_spec

    missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
    if missing:
        version = "%d.%d" % sys.version_info[:2]
        raise SetupError(
            f"this Python ({sys.executable}) lacks the module {' and '.join(missing)}.\n"
            f"  Debian/Ubuntu: apt install python{version}-venv     (or python3-venv)\n"
            f"  Fedora: dnf install python3-pip     or another interpreter: make serve PYTHON=python3.12"
        )


def site_packages() -> list[Path]:
    return [*VENV.glob("lib/python*/site-packages"), *VENV.glob("Lib/site-packages")]


def repair_packages() -> None:
    """Forget packages that a stopped pip left half-unpacked, so that pip installs them again.

    pip writes INSTALLER after all of a package's files, so a .dist-info without it is unfinished; folders
    whose names begin with ~ are what it had moved aside.
    """
    for packages in site_packages():
        for info in packages.glob("*.dist-info"):
            if not (info / "INSTALLER").exists():
                say(f"{info.name.removesuffix('.dist-info')} was left half-installed: installing it again")
                shutil.rmtree(info)
        for leftover in packages.glob("~*"):
            shutil.rmtree(leftover, ignore_errors=True)


def with_contained(extras: set[str]) -> set[str]:
    """These extras and those that they bring: dev, for one, asks for learnvllm[serve,study,bench]."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found: set[str] = set()
    to_read = set(extras)
    while to_read:
        extra = to_read.pop()
        found.add(extra)
        for requirement in project["optional-dependencies"].get(extra, ()):
            if own := re.match(rf"{project['name']}\[([^]]*)\]", requirement):
                to_read |= {name.strip() for name in own.group(1).split(",")} - found
    return found


def ensure_packages(extras: set[str]) -> None:
    """The packages of these extras, at the versions of constraints.txt. Extras once installed stay."""
    stamp = read_stamp()
    had = set(map(str, stamp["extras"])) if isinstance(stamp.get("extras"), list) else set()
    if stamp.get("done") and stamp.get("recipe") == recipe() and extras <= with_contained(had):
        return
    extras |= had
    repair_packages()
    write_stamp(extras, done=False)
    if not had:
        say("the first time this takes 2 to 4 minutes: 60 packages or more are fetched and unpacked")
    torch = torch_from_cpu_index()
    free = shutil.disk_usage(ROOT).free
    if not torch_is_installed() and free < 2.5 * GIB:
        say(f"only {free / GIB:.1f} GiB are free on this disk; about 2.5 GiB are needed")
    if torch:
        try:
            pip(["--index-url", CPU_TORCH, "--no-deps", torch], "PyTorch for CPUs, about 200 MB")
        except SetupError as error:
            say(f"no CPU build from there ({str(error).splitlines()[0]}); taking PyTorch as pip finds it")
    what = f".[{','.join(sorted(extras))}]" if extras else "."
    pip(
        ["-c", "constraints.txt", "--config-settings", EDITABLE, "-e", what],
        f"packages for learnvllm{what[1:]}",
    )
    write_stamp(extras, done=True)


def torch_is_installed() -> bool:
    return any(VENV.glob("lib/python*/site-packages/torch-*.dist-info"))


def torch_from_cpu_index() -> str | None:
    """The requirement (torch==X) that should come from PyTorch's own CPU index, or None.

    On Linux the torch of PyPI brings gigabytes of CUDA. Where the CPU index answers we take torch, and
    nothing else, from there. A machine whose pip is told where to look (a mirror, a folder of wheels) is left
    to that. TORCH_INDEX=pypi turns this off.
    """
    if sys.platform != "linux" or torch_is_installed() or os.environ.get("TORCH_INDEX") == "pypi":
        return None
    settings = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, env=clean_env()
    ).stdout
    if re.search(r"find-links|index-url", settings):
        return None
    try:
        urllib.request.urlopen(f"{CPU_TORCH}/torch/", timeout=5).close()
    except (OSError, ValueError):
        say("PyTorch's CPU index does not answer; PyPI's build for Linux may bring several GB of CUDA")
        return None
    pinned = re.search(r"^torch==[^\s;]+", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    return pinned.group() if pinned else None


def pip(arguments: list[str], label: str) -> None:
    """Run `pip install`, showing what it is at; its full output goes to the log."""
    command = [str(PYTHON), "-m", "pip", "install", "--no-input", "--progress-bar", "off", *arguments]
    lines: list[str] = []
    with step(label) as progress, LOG.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_env(),
            close_fds=False,  # pip shares the lock: if only this script is killed, the next waits for pip
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                lines.append(line)
                if re.match(
                    r"\s*(Collecting|Downloading|Using cached|Obtaining|Processing|Preparing|Building) ", line
                ):
                    progress(line.strip().split(" (from ")[0])
                elif line.startswith("Installing collected packages"):
                    progress(unpacking(line.count(",") + 1))
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code != 0:
            raise SetupError(explain("".join(lines), f"pip stopped with exit status {code}"))


def unpacking(total: int) -> Callable[[], str]:
    """Says how many of pip's packages are unpacked by now; pip itself is silent meanwhile.

    A package's .dist-info comes last (see `repair_packages`), and is named after its version, too.
    """

    def unpacked() -> set[Path]:
        return {info for folder in site_packages() for info in folder.glob("*.dist-info/INSTALLER")}

    before = unpacked()
    return lambda: f"unpacking: {len(unpacked() - before)} of {total} packages"


def ensure_model() -> None:
    """The embedded model in the cache directory. The command itself returns at once when it is there."""
    pulled = subprocess.run([PYTHON, "-m", "learnvllm", "models", "pull"], cwd=ROOT, env=clean_env())
    if pulled.returncode != 0:
        raise SetupError("the embedded model could not be fetched (see above); `make serve` tries again")


# ------------------------------------------------------------------------------------------ words for people


def explain(output: str, otherwise: str) -> str:
    """The likely cause in pip's output, and what to do about it."""
    tail = "\n".join("    " + line for line in output.strip().splitlines()[-12:])
    log = f"\n  All of pip's output: {LOG}" if LOG.exists() else ""
    if re.search(r"No space left on device|Errno 28|Disk quota exceeded|not enough space", output):
        free = shutil.disk_usage(ROOT).free / GIB
        return (
            f"the disk is full ({free:.1f} GiB free at {ROOT}; about 2.5 GiB are needed, and room in the\n"
            "  temporary folder). Free some, or point TMPDIR to a larger disk; the same command then goes on."
        )
    if re.search(r"CERTIFICATE_VERIFY_FAILED|SSLError|SSLCertVerification", output):
        return (
            "the package index's certificate was not accepted. Behind a company proxy, set PIP_CERT to its\n"
            f"  certificate file; also check the machine's clock.{log}"
        )
    if re.search(
        r"NewConnectionError|NameResolutionError|name resolution|Max retries|ConnectTimeout|ProxyError"
        r"|Network is unreachable|Connection (refused|reset|broken)|ReadTimeout|Read timed out"
        r"|Failed to establish",
        output,
    ):
        return (
            "the package index could not be reached. Is this machine online? Behind a proxy, set\n"
            f"  HTTPS_PROXY; with a mirror, PIP_INDEX_URL. The same command then goes on from here.{log}"
        )
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing:
        return (
            f"there is no {missing.group(1)} for this Python ({sys.version.split()[0]}, {sys.platform}).\n"
            f"  64-bit CPython {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]} will do, on Linux (glibc),"
            f"\n  Windows or macOS (Apple silicon): make serve PYTHON=python3.12{log}"
        )
    return f"{otherwise}:\n{tail}{log}"


def say(text: str) -> None:
    print(f"  {text}", flush=True)


@contextlib.contextmanager
def step(label: str) -> Iterator[Callable[[str | Callable[[], str]], None]]:
    """Show a step while it runs: on a terminal one line that ticks, elsewhere a line every ten seconds.

    Gives a function that takes what the step is at just now, or what finds that out at every tick.
    """
    start, finished, live = time.monotonic(), threading.Event(), sys.stdout.isatty()
    detail: list[str | Callable[[], str]] = [""]
    width = shutil.get_terminal_size().columns - 1

    def tick() -> None:
        while not finished.wait(0.5 if live else 10):
            elapsed, now = f"{time.monotonic() - start:.0f} s", detail[0]
            doing = now if isinstance(now, str) else now()
            if live:
                print(f"\r\x1b[K{f'  {label}  {elapsed}  {doing}'[:width]}", end="", flush=True)
            else:
                say(f"  {elapsed}  {doing}")

    print(f"  {label} ...", end="" if live else "\n", flush=True)
    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    outcome = "stopped"
    try:
        yield lambda doing: detail.__setitem__(0, doing)
        outcome = "done"
    except SetupError:
        outcome = "failed"
        raise
    finally:
        finished.set()
        ticker.join()
        print(f"{chr(13)}\x1b[K" if live else "", end="")
        say(f"{label}: {outcome}, {time.monotonic() - start:.0f} s")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """`make serve` and `make test` may be started side by side; the second waits for the first's set-up."""
    if os.name == "nt":
        yield
        return
    import fcntl

    with (ROOT / ".venv.lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running here: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description="Set learnvllm up in .venv.")
    parser.add_argument(
        "--extras", default="", help="extras of pyproject.toml, comma-separated: serve,dev ..."
    )
    parser.add_argument("--model", action="store_true", help="fetch the embedded model too")
    parser.add_argument("--python-was-chosen", action="store_true", help="rebuild a .venv of another Python")
    options = parser.parse_args()
    try:
        with one_at_a_time():
            ensure_venv(options.python_was_chosen)
            ensure_packages({extra for extra in options.extras.split(",") if extra})
            if options.model:
                ensure_model()
    except SetupError as error:
        print(f"\nSet-up failed: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\nSet-up failed: {explain(str(error), 'the system says')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
