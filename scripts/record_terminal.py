"""Records a real command's terminal output as an SVG picture, for the README.

.venv/bin/python scripts/record_terminal.py docs/assets/chat.svg -- learnvllm generate "Why is the sky blue?"
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100


def record(target: Path, command: list[str]) -> None:
    """Run `command` as a terminal would show it, keep its colours, write the picture to `target`."""
    shown = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"},
    )
    if shown.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{shown.stdout}")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (shlex.join(command), "bold")))
    console.print(Text.from_ansi(shown.stdout))
    # Without rich's @font-face rules: the picture must not fetch fonts from anywhere.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="learnvllm"), flags=re.DOTALL)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(svg + "\n", "utf-8")


if __name__ == "__main__":
    if "--" not in sys.argv[2:3] or len(sys.argv) < 4:
        sys.exit("usage: record_terminal.py PICTURE.svg -- COMMAND ...")
    record(Path(sys.argv[1]), sys.argv[3:])
