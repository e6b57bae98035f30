"""What every test relies on: a thread per worker, no network, a clean environment, repeatable hypothesis."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before anything imports torch or numba: two pytest workers with a thread pool each for every core get in
# each other's way. Child processes inherit this.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "LEARNVLLM_NUM_THREADS"):
        os.environ[_variable] = "1"

# The oracle never asks the hub, and what the developer's shell has set does not change a test.
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
for _variable in [name for name in os.environ if name.startswith("LEARNVLLM_")]:
    if _variable not in ("LEARNVLLM_HOME", "LEARNVLLM_NUM_THREADS"):
        del os.environ[_variable]

# Triton reads this when it is first imported, whoever does that. Without a GPU its kernels run interpreted.
if not list(Path("/dev").glob("nvidia[0-9]*")):
    os.environ["TRITON_INTERPRET"] = "1"

import pytest
from hypothesis import HealthCheck, settings

# derandomize: the same examples on every machine, so that a red test is red everywhere. To search further:
# pytest --hypothesis-profile=explore
settings.register_profile(
    "learnvllm",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", parent=settings.get_profile("learnvllm"), derandomize=False, max_examples=2000
)
settings.load_profile("learnvllm")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _same_working_directory() -> Iterator[None]:
    """A test that changes directory does not take the next one with it."""
    before = os.getcwd()
    yield
    os.chdir(before)


@pytest.fixture(autouse=True)
def _same_kernels() -> Iterator[None]:
    """A worker selects kernels or their twins for its whole process: the next test begins anew."""
    yield
    ops = sys.modules.get("learnvllm.model_layers.ops")
    if ops is not None:
        ops.select_kernels(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU or a browser where there is none."""
    if any("gpu" in item.keywords for item in items):
        import torch

        if not torch.cuda.is_available():
            _skip(items, "gpu", "needs a CUDA device")
    if any("browser" in item.keywords for item in items):
        import shutil

        if not (shutil.which("chromium") or shutil.which("google-chrome")):
            _skip(items, "browser", "needs Chromium")


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if marker in item.keywords:
            item.add_marker(pytest.mark.skip(reason=reason))
