"""Records a terminal session as an SVG picture: types lines into a real program, keeps what the screen shows.

    .venv/bin/python scripts/record_terminal.py docs/assets/chat.svg "learnvllm chat" "Why is the sky blue?"

Needs tmux, which is the terminal. Nothing is staged: what the program prints is what the picture shows.
"""

import argparse
import io
import os
import re
import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent


class Terminal:
    """A tmux pane of fixed size on a server of its own, running a shell with a bare prompt."""

    def __init__(self, columns: int, rows: int) -> None:
        self.socket = f"record-{os.getpid()}"
        shell = "env PS1='$ ' PROMPT_COMMAND= bash --norc --noprofile"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), shell)
        self.wait_for_prompt()

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self.socket, *arguments]
        environment = {
            **os.environ,
            "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
            "COLORTERM": "truecolor",
        }
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    def type(self, line: str) -> None:
        self.tmux("send-keys", "-l", line)
        self.tmux("send-keys", "Enter")

    def screen(self) -> str:
        """What is on the screen, with its colours as ANSI codes, without the empty rows below."""
        return self.tmux("capture-pane", "-p", "-e").rstrip()

    def wait_for_prompt(self, quiet_s: float = 1.0, at_most_s: float = 300.0) -> None:
        """Until the last line is a prompt, and has been for `quiet_s` seconds."""
        before, since, end = "", time.monotonic(), time.monotonic() + at_most_s
        while time.monotonic() < end:
            time.sleep(0.2)
            now = self.screen()
            prompted = re.search(r"[$>]\s*$", Text.from_ansi(now).plain)
            if now != before or not prompted:
                before, since = now, time.monotonic()
            elif time.monotonic() - since >= quiet_s:
                return

    def close(self) -> None:
        self.tmux("kill-server")


def picture(screen: str, columns: int) -> str:
    """The screen as SVG, without rich's links to fonts elsewhere."""
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(screen))
    svg = console.export_svg(title="learnvllm", unique_id="learnvllm")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "lines", nargs="+", help="typed one after the other, each when the screen stands still"
    )
    parser.add_argument("--columns", type=int, default=90)
    parser.add_argument("--rows", type=int, default=40)
    options = parser.parse_args()
    terminal = Terminal(options.columns, options.rows)
    try:
        for line in options.lines:
            terminal.type(line)
            terminal.wait_for_prompt()
        screen = terminal.screen()
    finally:
        terminal.close()
    options.target.parent.mkdir(parents=True, exist_ok=True)
    options.target.write_text(picture(screen, options.columns), "utf-8")


if __name__ == "__main__":
    main()
