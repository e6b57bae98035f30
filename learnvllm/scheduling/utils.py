"""When a request is over, as far as token ids can tell; stop strings are the output processor's business.

Upstream namesake: vllm/v1/core/sched/utils.py (check_stop).
"""

from __future__ import annotations

from learnvllm.architecture.request import Request, RequestStatus


def check_stop(request: Request, max_model_len: int) -> RequestStatus | None:
    """Look at the token just appended; the final status if it was the last, else None. A stop token that ends
    the request is noted as its stop_reason.

    An end-of-sequence or stop token counts only from `min_tokens` output tokens on, itself included. The
    length limits always count: they are compared with >=, so that no limit can be overshot and then missed
    for ever.
    """
    params = request.sampling_params
    num_output_tokens = request.num_output_tokens
    token_id = request.all_token_ids[-1]
    if num_output_tokens >= params.min_tokens:
        if not params.ignore_eos and token_id in request.eos_token_ids:
            return RequestStatus.FINISHED_STOPPED
        if token_id in params.stop_token_ids:
            request.stop_reason = token_id
            return RequestStatus.FINISHED_STOPPED
    if num_output_tokens >= request.max_tokens or request.num_tokens >= max_model_len:
        return RequestStatus.FINISHED_LENGTH_CAPPED
    return None
