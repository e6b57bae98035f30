"""What passes between scheduler and workers each step: deltas down, sampled tokens up.

A worker keeps every running request's state; a step names only what changed. A request that returns after
a preemption comes as a new one, its output so far counted among its tokens.
Upstream namesakes: vllm/v1/core/sched/output.py, vllm/v1/outputs.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from learnvllm.architecture.messages import LogprobsLists
from learnvllm.architecture.sampling_params import SamplingParams

# Block ids of a request, one list per KV cache group.
BlockIds = tuple[list[int], ...]


@dataclass(frozen=True)
class NewRequestData:
    """A request the workers have not seen, or have forgotten since its preemption."""

    req_id: str
    token_ids: list[int]
    """Prompt, then any output made before a preemption."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...]
    block_ids: BlockIds
    num_computed_tokens: int


@dataclass(frozen=True)
class CachedRequestData:
    """Requests the workers know. Parallel lists. Tokens they sampled themselves are not sent back."""

    req_ids: list[str] = field(default_factory=list)
    new_block_ids: list[BlockIds | None] = field(default_factory=list)
    """Blocks to append per group; None: none."""
    num_computed_tokens: list[int] = field(default_factory=list)
    """Tokens whose KV is in the cache before this step."""


@dataclass(frozen=True)
class SchedulerOutput:
    """One step's work."""

    step_id: int
    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    """Request id -> tokens to compute now. Its order is the batch order."""
    total_num_scheduled_tokens: int
    finished_req_ids: set[str] = field(default_factory=set)
    """Finished or aborted since the last step: forget them. Comes before anything else in this step."""
    preempted_req_ids: set[str] = field(default_factory=set)
    """Lost their blocks in this step: forget them (they come back as new)."""


@dataclass(frozen=True)
class ModelRunnerOutput:
    """What the workers made of a SchedulerOutput."""

    req_ids: list[str]
    """In batch order."""
    sampled_token_ids: list[list[int]]
    """Per request, in the same order; empty where the prompt is not complete yet."""
    logprobs: dict[str, LogprobsLists] = field(default_factory=dict)
    """Only requests that asked, only sampled tokens of this step."""
    prompt_logprobs: dict[str, LogprobsLists] = field(default_factory=dict)
    """Only requests that asked: rows for the prompt positions of this step's chunk. Row i belongs to prompt
    token (start + i + 1); the first prompt token has none."""
    forward_seconds: float = 0.0
    """Wall time of the model forward alone, for tracing and the engine-share benchmark."""
    num_nans_in_logits: dict[str, int] = field(default_factory=dict)
    """Request id -> NaNs among the logits its token was sampled from; only requests that had any. The token
    is the best of the others, so the batch goes on; the scheduler ends the request with FINISHED_ERROR."""


EMPTY_MODEL_RUNNER_OUTPUT = ModelRunnerOutput(req_ids=[], sampled_token_ids=[])
