"""Which models this server has, by the names clients use: one, for now.

Upstream namesake: vllm/entrypoints/openai/models/serving.py (OpenAIServingModels).
"""

from __future__ import annotations

from learnvllm.architecture.config import EngineConfig
from learnvllm.serving.content import did_you_mean, shorten
from learnvllm.serving.errors import ModelNotFoundError
from learnvllm.serving.responses import ModelCard, ModelList, now


class OpenAIServingModels:
    """Knows the served name and checks the `model` of every request."""

    def __init__(self, config: EngineConfig) -> None:
        self.name = config.served_model_name
        self.max_logprobs = config.model_config.max_logprobs
        self.fingerprint = f"fp_{config.config_hash()[:10]}"
        """Of model and flags: on one machine, equal fingerprints, seeds and prompts give equal answers."""
        self.card = ModelCard(
            id=self.name,
            object="model",
            created=now(),
            owned_by="learnvllm",
            root=config.model_config.model,
            parent=None,
            max_model_len=config.max_model_len,
        )

    def check(self, model: str | None) -> None:
        """None takes the default.

        Raises:
            ModelNotFoundError: the request names a model that is not served here.
        """
        if model is None or model == self.name:
            return
        close = did_you_mean(model.lower(), [self.name.lower()], cutoff=0.5)
        hint = f" Did you mean {self.name!r}?" if close else f" This server has {self.name!r}."
        raise ModelNotFoundError(f"The model {shorten(model)} does not exist here.{hint}")

    def list(self) -> ModelList:
        return ModelList(object="list", data=[self.card])

    def get(self, model: str) -> ModelCard:
        self.check(model)
        return self.card
