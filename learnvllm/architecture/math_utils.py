"""Whole-number arithmetic that blocks ask for everywhere. Upstream namesake: vllm/utils/math_utils.py."""


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up: blocks of b that a tokens need."""
    return -(a // -b)
