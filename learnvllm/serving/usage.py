"""Counting tokens of one HTTP request while its outputs come in.

Upstream namesake: vllm/entrypoints/serve/engine/protocol.py (UsageInfo).
"""

from __future__ import annotations

from learnvllm.architecture.outputs import RequestOutput
from learnvllm.serving.responses import PromptTokensDetails, UsageInfo


class UsageCounter:
    """Add every RequestOutput once; each carries only tokens that are new (DELTA or FINAL_ONLY)."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self.completion_tokens = 0

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        self._prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        cached = self._cached_tokens.get(prompt_index, 0)
        self._cached_tokens[prompt_index] = max(cached, output.num_cached_tokens)
        self.completion_tokens += sum(len(completion.token_ids) for completion in output.outputs)

    def usage(self, completion_tokens: int | None = None) -> UsageInfo:
        prompt = sum(self._prompt_tokens.values())
        completion = self.completion_tokens if completion_tokens is None else completion_tokens
        return UsageInfo(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached_tokens.values())),
        )
