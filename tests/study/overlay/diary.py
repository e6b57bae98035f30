"""What a learner's code writes when it runs, so that a test sees that it did, and in which process."""

import os


def write(name: str) -> None:
    path = os.environ.get("DIARY")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{name} {os.getpid()}\n")
