"""One server with the fake engine for the tests of this folder, and the OpenAI SDK pointed at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.serving.fake_server import FakeServer, running_fake_server
from tests.serving.real_server import ServerProcess, serving


@pytest.fixture(scope="session")
def shared_fake_server() -> Iterator[FakeServer]:
    with running_fake_server() as server:
        yield server


@pytest.fixture
def fake_server(shared_fake_server: FakeServer) -> Iterator[FakeServer]:
    """The shared server, with its engine as it was made."""
    yield shared_fake_server
    shared_fake_server.reset()


# A client takes a quarter of a second to make (it reads the system's certificates), so there is one of each.
@pytest.fixture(scope="session")
def sdk_session(shared_fake_server: FakeServer) -> Iterator[openai.OpenAI]:
    url = f"{shared_fake_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="-", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def sdk(fake_server: FakeServer, sdk_session: openai.OpenAI) -> openai.OpenAI:
    return sdk_session


@pytest.fixture(scope="session")
def http_session(shared_fake_server: FakeServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_fake_server.url, timeout=30) as client:
        yield client


@pytest.fixture
def http(fake_server: FakeServer, http_session: httpx.Client) -> httpx.Client:
    return http_session


# --------------------------------------------------------------------------------------- the real engine


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a random Llama of two layers."""
    from tests.model_layers.tiny_models import (
        make_tiny_model,
    )  # imports torch: not for the fake engine's tests

    directory, _ = make_tiny_model("llama", tmp_path_factory.mktemp("model"))
    return directory


TINY_FLAGS = (
    "--num-gpu-blocks-override",
    "200",
    "--dtype",
    "float32",
    "--max-num-seqs",
    "16",
    "--num-threads",
    "1",
)


@pytest.fixture(scope="session")
def real_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One `learnvllm serve` for all tests that leave it alive."""
    log = tmp_path_factory.mktemp("server") / "log"
    flags = (*TINY_FLAGS, "--served-model-name", "tiny", "--max-num-queued-reqs", "250")
    with serving(tiny_model, log, *flags) as server:
        yield server
        server.process.terminate()
        assert server.wait() == 0, server.output()


@pytest.fixture(scope="session")
def real_sdk(real_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real_server.url}/v1", api_key="-", max_retries=0, timeout=60) as client:
        yield client
