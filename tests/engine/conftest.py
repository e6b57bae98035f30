"""Models and oracles, each built once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.engine.oracle import Oracle


@dataclass(frozen=True)
class TinyModel:
    kind: str
    directory: Path
    oracle: Oracle
    vocab_size: int


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """tiny_model("llama"): a tiny random model of a kind and its oracle."""
    from tests.model_layers.tiny_models import make_tiny_model

    @cache
    def make(kind: str) -> TinyModel:
        directory, model = make_tiny_model(kind, tmp_path_factory.mktemp("models"))
        return TinyModel(kind, directory, Oracle(model), model.config.vocab_size)

    return make
