"""The command line, from the parsers themselves."""

from __future__ import annotations

import argparse

from learnvllm import cli
from learnvllm.study.tables import code, table, text


def page() -> str:
    """One section a group of commands, one below it for each command, one table for its flags."""
    parts = [
        "# Command line\n",
        "Flags that vLLM has, too, are named as there (upstream namesake: `vllm/entrypoints/cli/`). "
        "Errors are one line on stderr and exit code 2.\n",
    ]
    for title, commands in cli.GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [command_section(name) for name in commands]
    return "\n".join(parts)


def command_section(name: str) -> str:
    """One command. Its parser is made as the command itself makes it."""
    whole = cli._make_parser([name])
    (commands,) = (action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return parser_section(commands.choices[name], f"learnvllm {name}", 3)


def parser_section(parser: argparse.ArgumentParser, title: str, level: int) -> str:
    """A parser's description, usage and flags, then those of its own subcommands, a level below."""
    usage = " ".join(parser.format_usage().removeprefix("usage:").split())
    parts = [f"{'#' * level} `{title}`\n", f"{parser.description or ''}\n", f"```text\n{usage}\n```\n"]
    below = []
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        below += [action for action in actions if isinstance(action, argparse._SubParsersAction)]
        rows = [
            row(a) for a in actions if not isinstance(a, argparse._SubParsersAction | argparse._HelpAction)
        ]
        if rows:
            named = group.title if group.title not in ("options", "positional arguments") else ""
            parts.append(f"**{named.capitalize()}**\n" if named else "")
            parts.append(table(("Argument", "Meaning"), rows) + "\n")
    for action in below:
        parts += [parser_section(sub, f"{title} {name}", level + 1) for name, sub in action.choices.items()]
    return "\n".join(part for part in parts if part)


def row(action: argparse.Action) -> tuple[str, str]:
    """One flag or operand: how to write it, what it means."""
    value = "" if action.nargs == 0 else metavar(action)
    names = action.option_strings or [value]
    shown = ", ".join(names) + (f" {value}" if action.option_strings and value else "")
    formatter = argparse.HelpFormatter("learnvllm")
    meaning = formatter._expand_help(action) if action.help else ""
    return code(shown), text(meaning)


def metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()
