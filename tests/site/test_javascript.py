"""The site's scripts without a browser: `node --test` over tests/site/js."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "js"
NODE = shutil.which("node")
TOO_OLD = 20


def _version() -> int:
    assert NODE is not None
    said = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=False).stdout
    return int(match[1]) if (match := re.match(r"v(\d+)", said)) else 0


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.test.mjs")), ids=lambda path: path.name)
def test_node(file: Path) -> None:
    if NODE is None or _version() < TOO_OLD:
        pytest.skip(f"left out: needs node {TOO_OLD} or newer (`apt-get install nodejs`, or nodejs.org)")
    done = subprocess.run(
        [NODE, "--test", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^# pass (\d+)", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) > 0
