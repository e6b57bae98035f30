"""The scheduler's door: what could never run is refused when added, not found out when it blocks everybody.

It looks at lengths, ids and queues; a request's other values are the engine core's and front end's affair.
What can never run is the caller's mistake (400); a full queue is nobody's (503, try again later).
"""

from __future__ import annotations

from collections.abc import Container

from learnvllm.architecture.config import SchedulerConfig
from learnvllm.architecture.errors import QueueFullError, ValidationError
from learnvllm.architecture.request import Request
from learnvllm.scheduling.request_queue import RequestQueue


def check_admissible(
    request: Request, ids_in_use: Container[str], max_model_len: int, num_tokens_that_fit: int
) -> None:
    """Refuse a request that could never run.

    Args:
        request: the new request.
        ids_in_use: ids of unfinished requests.
        max_model_len: longest prompt + output, in tokens.
        num_tokens_that_fit: tokens whose KV the empty pool holds.

    Raises:
        ValidationError: says which limit, and by how much.
    """
    num_prompt_tokens = request.num_prompt_tokens
    if request.request_id in ids_in_use:
        raise ValidationError(
            f"request_id={request.request_id!r} is in use by an unfinished request; choose another.",
            parameter="request_id",
            value=request.request_id,
        )
    if num_prompt_tokens == 0:
        raise ValidationError(
            "The prompt is empty; it needs at least one token.", parameter="prompt", value=[]
        )
    if request.max_tokens < 1:
        raise ValidationError(
            f"max_tokens={request.max_tokens}: max_tokens must be at least 1.",
            parameter="max_tokens",
            value=request.max_tokens,
        )
    if num_prompt_tokens >= max_model_len:
        raise ValidationError(
            f"The prompt has {num_prompt_tokens} tokens; at most {max_model_len - 1} leave room for an "
            f"output token within max_model_len={max_model_len}. Shorten the prompt.",
            parameter="prompt",
            value=num_prompt_tokens,
        )
    if num_prompt_tokens > num_tokens_that_fit:
        raise ValidationError(
            f"The prompt has {num_prompt_tokens} tokens, but the KV cache holds {num_tokens_that_fit} even "
            "when nothing else runs. Shorten the prompt or give the KV cache more memory.",
            parameter="prompt",
            value=num_prompt_tokens,
        )


def check_queue_limits(waiting: RequestQueue, config: SchedulerConfig) -> None:
    """Raise QueueFullError when as much waits as may wait.

    What the new request itself would add does not count: a long prompt must not be refused for ever.
    """
    limit = config.max_num_queued_reqs
    if limit is not None and len(waiting) >= limit:
        raise QueueFullError(
            f"{len(waiting)} requests wait already (max_num_queued_reqs={limit}). Try again later."
        )
    limit = config.max_num_queued_tokens
    if limit is not None and waiting.num_prompt_tokens >= limit:
        raise QueueFullError(
            f"{waiting.num_prompt_tokens} prompt tokens wait already (max_num_queued_tokens={limit}). "
            "Try again later."
        )
