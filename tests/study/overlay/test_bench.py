"""Throughput with and without the learner's code is recorded, for the journal."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from learnvllm.study import overlay, overlay_bench
from learnvllm.study.overlay_plan import make_plan
from learnvllm.study.progress import load_progress, progress_path
from tests.study.overlay.conftest import Learner


def measure(value: float, **changes: Any) -> Namespace:
    """A benchmark that finds `value`, as bench.report writes it."""
    flags: dict[str, Any] = {"kind": "throughput", "shadow": False, "output_json": None, "model": None}
    args = Namespace(**flags | {"num_prompts": 4, "input_len": 8, "output_len": 16} | changes)
    with overlay_bench.recording(args):
        if args.output_json is not None:
            Path(args.output_json).write_text(json.dumps({"figures": {overlay_bench.WHAT: value}}))
    return args


def test_both_are_kept_side_by_side(
    learner: Learner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert measure(100).output_json is None
    assert not progress_path().exists()  # nobody is learning here
    monkeypatch.setattr(overlay, "active", [make_plan(learner.solve("free_queue"))])
    measure(90, output_json=str(tmp_path / "mine.json"))
    monkeypatch.setattr(overlay, "active", [])
    measure(100)
    measure(5, kind="latency")
    measure(5, shadow=True)
    measure(5, num_prompts=5)
    (first, second) = load_progress().benchmarks.items()
    assert first[0] == "throughput of the embedded model: 4 prompts, 8 tokens in, 16 out"
    assert (first[1].reference, first[1].mine, first[1].parts) == (100, 90, ["kv_cache.free_queue"])
    assert first[1].change == pytest.approx(-0.1)
    assert (second[1].reference, second[1].mine) == (5, None)


def test_a_broken_state_file_does_not_fail_a_benchmark(
    learner: Learner, capsys: pytest.CaptureFixture[str]
) -> None:
    progress_path().parent.mkdir(parents=True)
    progress_path().write_text("version = [")
    measure(100)
    assert "Not recorded for your journal: " in capsys.readouterr().err
