"""Scheduling and block bookkeeping are host work: importing them must not load torch."""

import subprocess
import sys


def test_scheduler_and_pool_import_without_torch() -> None:
    code = (
        "import sys, pkgutil, importlib, learnvllm.kv_cache, learnvllm.scheduling\n"
        "for package in (learnvllm.kv_cache, learnvllm.scheduling):\n"
        "    for module in pkgutil.iter_modules(package.__path__):\n"
        "        importlib.import_module(package.__name__ + '.' + module.name)\n"
        "print(sorted({'torch', 'numba', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
