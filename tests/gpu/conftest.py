"""The tiny models of the engine's tests, here too."""

from tests.engine.conftest import tiny_model

__all__ = ["tiny_model"]
