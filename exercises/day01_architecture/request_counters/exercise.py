"""A request is two counters (fill-in, 25 minutes, 14 points).

What the engine keeps of a request while it runs: which tokens are known, how many of them have been computed,
and when its milestones were. Everything that later days do (chunks, cache hits, preemption, steps in flight)
is arithmetic on these few members, and each field of the message that is forgotten on the way in is a feature
that silently stops working.

Not asked: Who changes num_computed_tokens, status and num_output_placeholders (the scheduler, Day 3), and how
a block is hashed (Day 4): the request is given a function for that.

Read: docs/topics/architecture/concepts.md
Check: learnvllm check architecture.request_counters
"""

from __future__ import annotations

import time

from learnvllm.architecture.messages import EngineCoreEvent, EngineCoreEventType, EngineCoreRequest
from learnvllm.architecture.request import BlockHasher, RequestStatus
from learnvllm.architecture.sampling_params import SamplingParams


class Request:
    """Mutable state of one request inside the engine core. Owned by the scheduler."""

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        *,
        eos_token_ids: tuple[int, ...] = (),
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        client_index: int = 0,
        block_hasher: BlockHasher | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.eos_token_ids = eos_token_ids
        self.arrival_time = time.time() if arrival_time is None else arrival_time
        self.priority = priority
        self.cache_salt = cache_salt
        self.client_index = client_index
        self.max_tokens: int = sampling_params.max_tokens or 0  # the input processor always sets it

        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.num_prompt_tokens = len(prompt_token_ids)
        self.all_token_ids: list[int] = list(prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        """Async scheduling: tokens that steps in flight will produce."""
        self.num_cached_tokens = -1
        """Prompt tokens found in the prefix cache when first scheduled; -1 before that."""
        self.num_preemptions = 0
        self.num_tokens_at_preemption = -1
        """`num_tokens` when last preempted; a second preemption at the same count made no progress."""
        self.events: list[EngineCoreEvent] = []

        self._block_hasher = block_hasher
        self.block_hashes: list[bytes] = []
        self._extend_block_hashes()

    @classmethod
    def from_engine_core_request(cls, r: EngineCoreRequest, block_hasher: BlockHasher | None) -> Request:
        # TODO: Every field of the message, and the hasher, to the constructor. The message has request_id,
        # prompt_token_ids, sampling_params, eos_token_ids, arrival_time, priority, cache_salt and
        # client_index. The ids that end a sequence become a tuple.
        raise NotImplementedError("TODO: Request.from_engine_core_request")

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known."""
        # TODO: All that are known: prompt and output.
        raise NotImplementedError("TODO: Request.num_tokens")

    @property
    def num_output_tokens(self) -> int:
        # TODO: Those that came after the prompt.
        raise NotImplementedError("TODO: Request.num_output_tokens")

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens known, or promised by a step in flight, that no step has computed. A decode has one."""
        # TODO: Known or in flight (num_output_placeholders), less those computed.
        raise NotImplementedError("TODO: Request.num_uncomputed_tokens")

    @property
    def is_finished(self) -> bool:
        return self.status.is_finished

    def append_output_token_ids(self, token_ids: list[int]) -> None:
        # TODO: Now known, in this order; and blocks that have become full by it get their hash.
        raise NotImplementedError("TODO: Request.append_output_token_ids")

    def record_event(self, kind: EngineCoreEventType) -> None:
        self.events.append(EngineCoreEvent(kind, time.monotonic()))

    def take_events(self) -> list[EngineCoreEvent] | None:
        # TODO: Hand out what has been recorded since the last call, once; None when there is nothing to tell.
        raise NotImplementedError("TODO: Request.take_events")

    def _extend_block_hashes(self) -> None:
        # TODO: If there is a hasher: ask it for the hashes that block_hashes lacks, and add them.
        raise NotImplementedError("TODO: Request._extend_block_hashes")

    def __lt__(self, other: Request) -> bool:
        """Priority order: lower value first, then earlier arrival, then id (a total order)."""
        # TODO: A lower priority value first, then the earlier arrival, then the id.
        raise NotImplementedError("TODO: Request.__lt__")
