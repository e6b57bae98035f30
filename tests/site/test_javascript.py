"""The site's scripts without a browser: `node --test` over tests/site/js."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "js"
NODE = shutil.which("node")
OLDEST = 18
NO_NODE = (
    f"left out: needs node {OLDEST} or newer (`apt-get install nodejs`, or nodejs.org). "
    "With REQUIRE_NODE=1 this is a failure."
)


def _version() -> int:
    if NODE is None:
        return 0
    said = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=False).stdout
    return int(match[1]) if (match := re.match(r"v(\d+)", said)) else 0


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.test.mjs")), ids=lambda path: path.name)
def test_node(file: Path) -> None:
    if NODE is None or _version() < OLDEST:
        if os.environ.get("REQUIRE_NODE"):
            pytest.fail(NO_NODE)
        pytest.skip(NO_NODE)
    command = [NODE, "--test", "--test-reporter=tap", str(file)]  # the default differs between versions
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^# pass (\d+)", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) > 0
