"""models, env and version: what is on this machine."""

from __future__ import annotations

import argparse


def configure_models(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", prog=parser.prog)
    for name, help in (
        ("list", "Models that are here. This is the default."),
        ("pull", "Fetch a model."),
        ("path", "Where it is."),
    ):
        usage = f"learnvllm models {name}" + ("" if name == "list" else " [NAME]")
        sub = actions.add_parser(name, help=help, description=help, usage=usage)
        if name != "list":
            sub.add_argument("name", nargs="?", metavar="NAME", help="Model; left out: the embedded one.")


def run_models(args: argparse.Namespace) -> int:
    from learnvllm.serving import models_command

    return {
        "list": lambda: models_command.list_models(),
        "pull": lambda: models_command.pull(args.name),
        "path": lambda: models_command.show_path(args.name),
    }[args.action or "list"]()


def configure_env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="For programs.")


def run_env(args: argparse.Namespace) -> int:
    from learnvllm.serving.env_command import show_environment

    return show_environment(as_json=args.json)


def configure_version(parser: argparse.ArgumentParser) -> None:
    pass


def run_version(args: argparse.Namespace) -> int:
    from learnvllm import __version__

    print(f"learnvllm {__version__}")
    return 0
