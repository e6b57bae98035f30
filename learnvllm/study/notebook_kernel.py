"""What a notebook's kernel does first: make sure that a notebook shows the same numbers every time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def seed_at_first_cell(shell: Any) -> None:
    """Seed when the first cell begins and no sooner: a kernel that is starting draws numbers of its own."""

    def seed(_: object) -> None:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (the one that a notebook may use without making it)
        shell.events.unregister("pre_run_cell", seed)

    shell.events.register("pre_run_cell", seed)
