"""`n` completions of one prompt: n requests inside the engine, one request outside.

The children share the prompt's blocks through the prefix cache like any requests with an equal prompt.
Upstream namesake: vllm/v1/engine/parallel_sampling.py (ParentRequest).
"""

from __future__ import annotations

import msgspec

from learnvllm.architecture.messages import EngineCoreRequest
from learnvllm.architecture.outputs import CompletionOutput, TokenLogprobs
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams


class ParentRequest:
    """Knows its children and, where only final outputs are wanted, collects them in order of their index."""

    def __init__(self, request_id: str, params: SamplingParams) -> None:
        self.request_id = request_id
        self.params = params
        self.unfinished = {self.child_id(index) for index in range(params.n)}
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        """From child 0, the only one that computes them."""
        self.num_cached_tokens = 0
        self._final_outputs: list[CompletionOutput | None] = [None] * params.n

    def child_id(self, index: int) -> str:
        return f"{index}_{self.request_id}"

    def child_ids(self) -> list[str]:
        return [self.child_id(index) for index in range(self.params.n)]

    def unfinished_ids(self) -> list[str]:
        return [child_id for child_id in self.child_ids() if child_id in self.unfinished]

    def child_params(self, index: int) -> SamplingParams:
        """The same wish for one completion; a seed is moved on by the index, or all would be equal."""
        seed = self.params.seed
        return msgspec.structs.replace(
            self.params,
            n=1,
            seed=None if seed is None else _wrap_int64(seed + index),
            prompt_logprobs=self.params.prompt_logprobs if index == 0 else None,
        )

    def add_output(self, child_id: str, completion: CompletionOutput) -> tuple[list[CompletionOutput], bool]:
        """Take a child's output; returns what to hand on now, and whether all children have finished."""
        if completion.finished:
            self.unfinished.discard(child_id)
        if self.params.output_kind is not RequestOutputKind.FINAL_ONLY:
            return [completion], not self.unfinished
        self._final_outputs[completion.index] = completion
        if self.unfinished:
            return [], False
        return [output for output in self._final_outputs if output is not None], True


def _wrap_int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def fan_out(request: EngineCoreRequest) -> list[tuple[EngineCoreRequest, ParentRequest | None, int]]:
    """The requests the core gets for one request: (request, its parent, its index)."""
    if request.sampling_params.n == 1:
        return [(request, None, 0)]
    parent = ParentRequest(request.request_id, request.sampling_params)
    return [
        (
            msgspec.structs.replace(
                request, request_id=parent.child_id(index), sampling_params=parent.child_params(index)
            ),
            parent,
            index,
        )
        for index in range(parent.params.n)
    ]
