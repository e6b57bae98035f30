"""The application around the fake engine, served from a thread of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from learnvllm.serving.api_server import build_app
from learnvllm.serving.middleware import ServerState
from learnvllm.serving.renderer import Renderer
from tests.serving.fake_engine import MAX_MODEL_LEN, FakeEngine
from tests.serving.server import running


@dataclass
class FakeServer:
    url: str
    engine: FakeEngine
    state: ServerState

    def reset(self) -> None:
        """The engine as it was made."""
        engine = self.engine
        engine.token_seconds, engine.refuse, engine.fail_after, engine.dead = 0.0, None, None, False
        engine.prompt_logprobs_at = 1
        self.state.draining = False


@contextmanager
def running_fake_server() -> Iterator[FakeServer]:
    engine, state = FakeEngine(), ServerState()
    app = build_app(engine, Renderer(engine.tokenizer, MAX_MODEL_LEN), state=state)
    with running(app) as server:
        yield FakeServer(server.url, engine, state)
