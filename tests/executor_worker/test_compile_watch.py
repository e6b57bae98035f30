"""What is compiled after warm-up is named, with what warm-up missed."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from learnvllm.executor_worker.device.compile_watch import CompileWatch


def compiled(watch: CompileWatch, name: str, **traits: object) -> None:
    watch(fn=SimpleNamespace(name=name), compile={"key": name + str(traits), **traits}, key="k", repr="r")


def test_only_what_comes_after_warm_up_is_late(caplog: pytest.LogCaptureFixture) -> None:
    watch = CompileWatch()
    compiled(watch, "norm", signature="*bf16", num_warps=4)
    compiled(watch, "norm", signature="*fp16", num_warps=4)
    watch.warmed_up()
    assert watch.late == []
    with caplog.at_level(logging.WARNING):
        compiled(watch, "norm", signature="*fp16", num_warps=8)
        compiled(watch, "attention", signature="*bf16")
    assert watch.late == ["norm: other num_warps", "attention: no such kernel was warmed up"]
    assert "Compiled after warm-up, while requests waited: norm: other num_warps" in caplog.text
