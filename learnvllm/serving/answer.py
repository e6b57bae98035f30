"""What the responses to one request have in common, whole or streamed, chat or completion.

Upstream has these as local variables of each generator (vllm/entrypoints/openai/*/serving.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from learnvllm.serving.responses import UsageInfo, new_id, now
from learnvllm.serving.serving_models import OpenAIServingModels
from learnvllm.serving.usage import UsageCounter


class HeadFields(TypedDict):
    """The fields every response begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class UsageField(TypedDict, total=False):
    """`usage` of a chunk: absent where it was not asked for."""

    usage: UsageInfo | None


@dataclass
class AnswerHead:
    """Who answers, under which id, and how many tokens so far."""

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=now)
    usage: UsageCounter = field(default_factory=UsageCounter)

    @classmethod
    def begin(cls, prefix: str, models: OpenAIServingModels) -> AnswerHead:
        return cls(new_id(prefix), models.name, models.fingerprint)

    def fields(self) -> HeadFields:
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def usage_so_far(self, *, included: bool, continuous: bool) -> UsageField:
        """stream_options: with `include_usage` every chunk has it, null unless it is continuous."""
        if continuous:
            return {"usage": self.usage.usage()}
        return {"usage": None} if included else {}
