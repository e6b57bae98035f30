"""`learnvllm dev …`: `generate` writes starters, `check` proves exercises, `site` writes pages as Markdown.

Also runnable as `python -m learnvllm.study.dev`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from learnvllm.study import files
from learnvllm.study.catalogue import find_exercise, load_exercises
from learnvllm.study.exercise import Exercise, StudyError, read_bytes
from learnvllm.study.progress import progress_path


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the actions; returns the exit code."""
    parser = argparse.ArgumentParser(prog="learnvllm dev", description=__doc__)
    configure(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions to a parser; `run` answers what it parsed."""
    actions = parser.add_subparsers(dest="dev_action", metavar="ACTION", required=True, prog=parser.prog)
    generate = actions.add_parser("generate", help="Write the starters from the reference.")
    generate.add_argument("ids", nargs="*", metavar="ID", help="Exercises; left out: all.")
    generate.add_argument("--check", action="store_true", help="Write nothing; fail when a file differs.")
    check = actions.add_parser("check", help="Prove that starters fail, references pass and mutants die.")
    check.add_argument("ids", nargs="*", metavar="ID", help="Exercises; left out: all.")
    check.add_argument("--json", action="store_true", help="For programs.")
    check.add_argument("--fresh", action="store_true", help="Run everything again, whatever is known.")
    check.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="Graders at a time (1).")
    check.add_argument("--markdown", metavar="FILE", help="Also write the kill matrix there, as Markdown.")
    site = actions.add_parser("site", help="Write the pages of the site, as plain Markdown.")
    site.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="Where to.")


def run(args: argparse.Namespace) -> int:
    """What `configure`'s parser was told. Raises StudyError."""
    if args.dev_action == "site":
        from learnvllm.study.site.tree import write_site

        write_site(args.out)
        return 0
    exercises = list(dict.fromkeys(map(find_exercise, args.ids))) if args.ids else load_exercises()
    if not exercises:
        raise StudyError("There are no exercises here.")
    if args.dev_action == "generate":
        return generate(exercises, only_check=args.check)
    from learnvllm.study.dev_check import command

    return command(exercises, as_json=args.json, fresh=args.fresh, jobs=args.jobs, markdown=args.markdown)


def generate(exercises: Sequence[Exercise], only_check: bool = False) -> int:
    """Write each starter that differs from its generation; with `only_check`, name it and return 1.

    Where somebody learns in this checkout, what is replaced may be theirs, and is kept.
    """
    from learnvllm.study.starters import render_starter

    differing = 0
    for exercise in exercises:
        starter = render_starter(exercise)
        if read_bytes(exercise.path) == starter.encode():
            continue
        differing += 1
        if only_check:
            print(f"differs: {exercise.path}")
            continue
        if exercise.path.exists() and progress_path().exists():
            print(f"kept: {files.back_up(exercise.path, exercise.id)}")
        files.write_text(exercise.path, starter)
        print(f"written: {exercise.path}")
    if only_check and differing:
        print("Run `learnvllm dev generate`, and commit what it writes.")
        return 1
    print(f"{len(exercises)} starter{'s are' if len(exercises) > 1 else ' is'} as generated.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
