"""What every route that takes a prompt asks of its request: template options, limits, parameters as JSON.

Upstream namesake: vllm/entrypoints/generate/base/serving.py (GenerateBaseServing), there a base class.
"""

from __future__ import annotations

from typing import Any

import msgspec

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.serving.protocol import TemplateOptions
from learnvllm.serving.renderer import ChatParams


def chat_params(request: TemplateOptions) -> ChatParams:
    return ChatParams(
        add_generation_prompt=request.wants_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        template_kwargs=request.chat_template_kwargs or {},
    )


def check_top_logprobs(parameter: str, value: int | None, limit: int) -> None:
    """Raises: ValidationError: more candidates are asked for than this server gives."""
    if value is not None and not 0 <= value <= limit:
        raise ValidationError(
            f"{parameter}={value}: must be between 0 and {limit} (the server's --max-logprobs).",
            parameter=parameter,
            value=value,
        )


def max_tokens_or_one(wanted: int | None, min_tokens: int | None) -> int:
    """A stand-in for max_tokens while the prompt's length is not known, so that the rest can be checked."""
    return max(1, min_tokens or 0) if wanted is None else wanted


def params_as_dict(params: SamplingParams) -> dict[str, Any]:
    result: dict[str, Any] = msgspec.to_builtins(params, str_keys=True)
    return result
