"""`learnvllm …`: the command line. Flags are named as vLLM's; a command imports what it needs when it runs.

So `learnvllm --help` loads next to nothing. Errors of ours are one line on stderr and exit code 2; Ctrl-C is
130. Upstream namesake: vllm/entrypoints/cli/main.py.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

from learnvllm import __version__

USAGE_ERROR, INTERRUPTED = 2, 130
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_STUDY_PACKAGES = ("yaml", "libcst", "textual", "jupytext", "nbformat", "nbclient", "jupyter_client",
                   "markdown", "latex2mathml", "matplotlib", "pytest", "hypothesis")  # fmt: skip
_OPTIONAL_PACKAGES = {
    **dict.fromkeys(("fastapi", "uvicorn", "prometheus_client", "rich", "prompt_toolkit", "httpx"), "serve"),
    **dict.fromkeys(_STUDY_PACKAGES, "study"),
}
"""Packages that only some commands need, and the extra of pyproject.toml that brings them."""


@dataclass(frozen=True)
class Command:
    """One subcommand. Its home, imported when it runs, has `configure_NAME(parser)` and `run_NAME(args)`."""

    help: str
    home: str
    operands: str = ""
    """What follows the flags, in the usage line."""


_ENGINE, _TOOLS, _STUDY = "learnvllm.cli.engine", "learnvllm.cli.tools", "learnvllm.study.commands"
GROUPS: dict[str, dict[str, Command]] = {
    "Run the engine": {
        "serve": Command("Serve a model: the OpenAI API over HTTP.", _ENGINE, " [MODEL]"),
        "chat": Command("Chat with a model in the terminal.", _ENGINE, " [MODEL]"),
        "generate": Command("Continue prompts.", _ENGINE, " [PROMPT ...]"),
        "bench": Command(
            "Measure throughput, latency, or a running server.", _ENGINE, " {throughput,latency,serve}"
        ),
    },
    "Learn": {
        "day": Command("A day's plan: what to read, run, build and answer.", f"{_STUDY}.overview", " N"),
        "next": Command("The exercise that comes next.", f"{_STUDY}.overview"),
        "check": Command("Grade your code.", f"{_STUDY}.check", " [ID]"),
        "hint": Command("One more hint.", f"{_STUDY}.helping", " [ID]"),
        "solution": Command("The reference's code, once you have passed.", f"{_STUDY}.helping", " [ID]"),
        "reset": Command("Bring an exercise's starter back; yours is backed up.", f"{_STUDY}.helping", " ID"),
        "update": Command("Merge new starters into your files.", f"{_STUDY}.helping", " [ID]"),
        "progress": Command("The eleven days and the site, as a checklist.", f"{_STUDY}.overview"),
        "quiz": Command("Answer a day's questions.", f"{_STUDY}.daily", " N"),
        "journal": Command("Your log: a day's entry, list, export.", f"{_STUDY}.daily", " N|list|export"),
        "notebook": Command("Open a day's notebooks in Jupyter Lab.", f"{_STUDY}.daily", " N"),
        "study": Command("All of this on one screen.", f"{_STUDY}.daily", " [ID]"),
        "dev": Command("For authors: prove exercises, make starters.", f"{_STUDY}.authoring", " ACTION"),
    },
    "This machine": {
        "models": Command("List, fetch and find models.", _TOOLS, " [{list,pull,path}]"),
        "env": Command("Versions, machine and environment variables.", _TOOLS),
        "version": Command("Print the version.", _TOOLS),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name need not be text, nor a terminal know it all
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(arguments)
        finally:
            if sys.stdout is not None:  # what cannot be written is noticed here, not when Python ends
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `learnvllm … | head`: nobody reads on
        _discard_output()
        return 1
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        _discard_output()
        with contextlib.suppress(OSError):
            print(f"learnvllm: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return 1


def _discard_output() -> None:
    """What is still buffered goes nowhere, or writing it would fail again when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    from learnvllm.architecture.errors import LearnVLLMError
    from learnvllm.architecture.text import is_utf8

    strange = next((argument for argument in arguments if not is_utf8(argument)), None)
    command = _command(arguments)
    name = f"learnvllm {command}" if command in COMMANDS else "learnvllm"
    if strange is not None:
        print(f"{name}: {strange!a} is not valid UTF-8.", file=sys.stderr)
        return USAGE_ERROR
    level = ""
    try:
        parser = _make_parser(arguments)
        args = parser.parse_args(arguments)
        if args.command is None:
            parser.print_help()
            return USAGE_ERROR
        level = _set_up_logging(args)
        status = _function("run", args.command)(args)
        if status == 0 and getattr(args, "shadow", False):  # a difference would have ended the engine
            print("--shadow: no difference in what was compared.", file=sys.stderr)
        return status
    except LearnVLLMError as error:
        if level == "DEBUG":
            raise
        print(f"{name}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except ModuleNotFoundError as error:
        extra = _OPTIONAL_PACKAGES.get(error.name or "")
        if extra is None:
            raise
        # Of the companion's packages more than one will be missing: all, in the versions that were tested.
        what = '-c constraints.txt -e ".[study]"' if extra == "study" else error.name
        how = "make setup, or " if extra == "study" else ""
        advice = f"the package {error.name} is missing. Install it: {how}python -m pip install {what}"
        print(f"{name}: {advice}", file=sys.stderr)
        return USAGE_ERROR


def _command(arguments: list[str]) -> str | None:
    return next((argument for argument in arguments if not argument.startswith("-")), None)


def _function(verb: str, command: str) -> Callable[..., int]:
    function: Callable[..., int] = getattr(import_module(COMMANDS[command].home), f"{verb}_{command}")
    return function


class _Parser(argparse.ArgumentParser):
    """A flag that there is not is an error of the command it was given to, and names the one that was meant.

    argparse hands what it does not know up to the first parser, which knows none of the command's flags.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Where the name of a subcommand is missing, the list of them says more than the usage. In
        place of a wrong name of a command, the one that was meant is told.
        """
        self._say_what_was_meant(message)
        names = next((a.metavar for a in self._actions if isinstance(a, argparse._SubParsersAction)), None)
        if names is None or not message.endswith(f": {names}"):
            super().error(message)
        self.print_help(sys.stderr)
        self.exit(USAGE_ERROR, f"\n{self.prog}: error: {message}\n")

    def _say_what_was_meant(self, message: str) -> None:
        import difflib

        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)'", message)
        if wrong:
            near = difflib.get_close_matches(wrong[1], COMMANDS, n=1)
            meant = f": did you mean `{self.prog} {near[0]}`?" if near else "."
            more = f"`{self.prog} --help` lists the commands."
            self.exit(USAGE_ERROR, f"{self.prog}: there is no command {wrong[1]!r}{meant} {more}\n")

    def _meant(self, unknown: list[str]) -> str:
        import difflib

        flags = dict.fromkeys(re.findall(r"--[a-z][a-z0-9-]*", self.format_help()))
        wrong = (word.partition("=")[0] for word in unknown if word.startswith("--"))
        meant = [flag for word in wrong for flag in difflib.get_close_matches(word, flags, n=1)]
        return f" (did you mean {' '.join(meant)}?)" if meant else ""


def _make_parser(arguments: list[str]) -> argparse.ArgumentParser:
    """All commands by name, but only the flags of the one that is asked for."""
    parser = _Parser(
        prog="learnvllm",
        usage="learnvllm [-h] [-v] COMMAND ...",
        description="How vLLM works, taught by a small vLLM that serves a real model.",
        epilog=_list_of_commands(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-v", "--version", action="version", version=f"learnvllm {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog=parser.prog
    )
    asked = _command(arguments)
    for name, command in COMMANDS.items():
        # A usage line with all the engine's flags would hide the error above it.
        usage = f"learnvllm {name} [flags]{command.operands}"
        sub = subparsers.add_parser(name, description=command.help, usage=usage)
        if name == asked:
            _function("configure", name)(sub)
    return parser


def _list_of_commands() -> str:
    """In groups, which argparse's own list has not."""
    lines = []
    for title, commands in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<12} {command.help}" for name, command in commands.items()), ""]
    return "\n".join([*lines, "learnvllm COMMAND --help says more."])


def _set_up_logging(args: argparse.Namespace) -> str:
    """Returns the log level. Raises: ConfigError: there is no such level."""
    import logging

    from learnvllm.architecture import envs

    if args.command in ("generate", "chat", "bench"):  # quiet unless asked; so is their engine's process
        os.environ.setdefault("LEARNVLLM_LOG_LEVEL", "WARNING")
    level: str = envs.get("LEARNVLLM_LOG_LEVEL")
    logging.basicConfig(level=level, format="%(levelname)s %(asctime)s %(message)s", datefmt="%H:%M:%S")
    envs.warn_of_unknown_variables()
    return level
