"""The figures on Day 4's pages are what our code computes."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from learnvllm.architecture.math_utils import cdiv
from learnvllm.kv_cache.interface import FullAttentionSpec, SlidingWindowSpec
from learnvllm.study.catalogue import load_exercises
from learnvllm.study.prefix_traces import assistants_and_documents, conversations, hit_rate, make_manager

PAGES = Path(__file__).resolve().parents[2] / "docs/topics/kv_cache"
TEXT = " ".join((PAGES / "concepts.md").read_text("utf-8").split())
MODEL = FullAttentionSpec(16, num_kv_heads=3, head_dim=64, dtype="float32")
LAYERS = 30


def has_row(*cells: str) -> bool:
    return re.search(r"\| *" + r" *\| *".join(re.escape(cell) for cell in cells) + r" *\|", TEXT) is not None


def test_bytes_of_the_embedded_model() -> None:
    block = LAYERS * MODEL.page_size_bytes
    assert has_row("a token", f"{block // 16:,} B")
    assert has_row("one block of all layers", f"{block:,} B")
    assert f"{MODEL.page_size_bytes:,} B" in TEXT
    assert has_row("all 64 requests at the model's 8,192 tokens", f"{64 * 8192 * block / 16 / 2**30:.1f} GiB")
    blocks = 2 * 2**30 // block
    assert has_row("blocks in 2 GiB", f"{blocks:,}")
    assert has_row("tokens they hold", f"{16 * (blocks - 1):,}")


def test_waste_of_larger_blocks() -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 2000) for _ in range(1000)]
    waste = {
        size: 100 * sum(cdiv(n, size) * size - n for n in lengths) / sum(lengths)
        for size in (8, 16, 32, 64, 128, 256)
    }
    assert has_row("waste", "0 %", *(f"{percent:.2f} %" for percent in waste.values()))


def test_blocks_of_a_window() -> None:
    window = SlidingWindowSpec(16, 3, 64, "float32", sliding_window=512)
    lengths = (512, 4096, 32768)
    assert has_row("full attention", *(f"{MODEL.max_blocks(n, 512):,}" for n in lengths))
    assert has_row("sliding window", *(f"{window.max_blocks(n, 512):,}" for n in lengths))


@pytest.mark.parametrize("blocks", [40, 60, 80, 120, 160])
def test_hit_rates_of_both_orders(blocks: int) -> None:
    rates = [
        f"{100 * hit_rate(trace, make_manager(blocks + 1, eviction)):.1f} %"
        for trace in (assistants_and_documents(), conversations())
        for eviction in ("lru", "segmented")
    ]
    assert has_row(str(blocks), *rates)


def test_what_the_day_is_shorter_by() -> None:
    """index.md names the exercises that may be left out."""
    page = " ".join((PAGES / "index.md").read_text("utf-8").split())
    optional = {"paged_attention", "sliding_window", "hybrid_hit", "segmented_eviction"}
    minutes = sum(exercise.minutes for exercise in load_exercises() if exercise.name in optional)
    assert all(f"*{name}*" in page for name in optional)
    assert f"Without these four exercises the day is {minutes} minutes shorter" in page
