"""`learnvllm dev …`: for whoever writes exercises and pages."""

from __future__ import annotations

import argparse

from learnvllm.study import dev


def configure_dev(parser: argparse.ArgumentParser) -> None:
    dev.configure(parser)


def run_dev(args: argparse.Namespace) -> int:
    return dev.run(args)
