"""What all Triton kernels here share: tile sizes, and starting a kernel while the one before it still ends.

A decode step for one request is some two hundred kernels of a microsecond or two, so the gap between two
counts. Hopper's programmatic dependent launch closes it: a kernel is put on the multiprocessors while its
predecessor runs, does what does not depend on it (loads weights), and waits before it reads the first input.
Upstream: vLLM's fused kernels since #55755; PTX's griddepcontrol.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def start_next_kernel_early(EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """The next kernel may be put beside this one from now on."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Until all earlier kernels' results are in memory. Every program calls this before it reads one of them
    or writes anything: earlier kernels may still be reading what it overwrites.
    """
    if EARLY:
        gdc_wait()


@cache
def starts_early(device: torch.device) -> bool:
    """Does this device launch a kernel beside its predecessor (Hopper and newer)? Not in the interpreter."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """How many programs run at the same time at least; in the interpreter, as many as on an H200."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@cache
def power_of_two(n: int) -> int:
    """The smallest one that is not below n: tiles have such sizes, and masks cut them to the real one."""
    return 1 << max(0, n - 1).bit_length()
