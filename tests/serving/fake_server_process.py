"""A server process around the fake engine, started in a second: for tests of signals, ports and exit codes.

python -m tests.serving.fake_server_process PORT TOKEN_SECONDS SHUTDOWN_TIMEOUT
"""

from __future__ import annotations

import sys

from learnvllm.serving import launcher
from learnvllm.serving.options import ServeOptions
from tests.serving.fake_engine import FakeEngine


def main() -> int:
    port, token_seconds, timeout = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    options = ServeOptions(port=port, shutdown_timeout=timeout)
    sock = launcher.bind(options.host, options.port)
    return launcher.serve(options, lambda: FakeEngine(token_seconds), sock)


if __name__ == "__main__":
    sys.exit(main())
