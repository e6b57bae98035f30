"""Who waits, and who is next: first come first served, by priority, or short prompts first.

Every queue finds and removes a request anywhere in it without walking through it, because clients hang up in
any order. Upstream namesake: vllm/v1/core/sched/request_queue.py (FCFSRequestQueue, PriorityRequestQueue);
ShortestFirstRequestQueue is ours alone.
"""

from __future__ import annotations

import bisect
import heapq
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator

from learnvllm.architecture.config import Policy
from learnvllm.architecture.request import Request

SECONDS_PER_PROMPT_TOKEN = 0.01
"""Policy `shortest`: for each token that its prompt is shorter, a request may have come this much later."""


class RequestQueue(ABC):
    """Waiting requests in the order in which they are to be admitted."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        """Prompt tokens of all that wait."""

    @abstractmethod
    def add_request(self, request: Request) -> None:
        """Queue a new request."""

    @abstractmethod
    def prepend_request(self, request: Request) -> None:
        """Queue a preempted request: before all new ones, where the policy leaves a choice."""

    @abstractmethod
    def peek_request(self) -> Request:
        """The next request. Raises IndexError when nobody waits."""

    @abstractmethod
    def pop_request(self) -> Request:
        """Remove the next request. Raises IndexError when nobody waits."""

    @abstractmethod
    def remove_request(self, request: Request) -> None:
        """Remove a request from wherever it stands. Raises KeyError when it does not wait."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """In the order of admission."""


class FCFSRequestQueue(RequestQueue):
    """First come, first served. An OrderedDict: both ends and any middle in O(1)."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def add_request(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self.num_prompt_tokens += request.num_prompt_tokens

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)
        self._requests.move_to_end(request.request_id, last=False)

    def peek_request(self) -> Request:
        if not self._requests:
            raise IndexError("no request waits")
        return next(iter(self._requests.values()))

    def pop_request(self) -> Request:
        request = self.peek_request()
        self.remove_request(request)
        return request

    def remove_request(self, request: Request) -> None:
        del self._requests[request.request_id]
        self.num_prompt_tokens -= request.num_prompt_tokens

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests.values()))


class PriorityRequestQueue(RequestQueue):
    """Lowest priority value first, then earliest arrival. A heap in which the removed stay, dead."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[Request] = []
        self._alive: dict[str, Request] = {}

    def add_request(self, request: Request) -> None:
        self._alive[request.request_id] = request
        heapq.heappush(self._heap, request)
        self.num_prompt_tokens += request.num_prompt_tokens

    def prepend_request(self, request: Request) -> None:
        """Priority decides, also among the preempted."""
        self.add_request(request)

    def peek_request(self) -> Request:
        if not self._alive:
            raise IndexError("no request waits")
        while not self._is_alive(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0]

    def pop_request(self) -> Request:
        request = self.peek_request()
        heapq.heappop(self._heap)
        self._forget(request)
        return request

    def remove_request(self, request: Request) -> None:
        self._forget(request)
        if len(self._heap) > 2 * len(self._alive) + 16:  # mostly dead: rebuild
            self._heap = list(self._alive.values())
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._alive.values()))

    def _is_alive(self, request: Request) -> bool:
        return self._alive.get(request.request_id) is request

    def _forget(self, request: Request) -> None:
        del self._alive[request.request_id]
        self.num_prompt_tokens -= request.num_prompt_tokens


class ShortestFirstRequestQueue(RequestQueue):
    """Short prompts first, and nobody waits for ever.

    A prompt that is k tokens shorter passes one that came up to k * SECONDS_PER_PROMPT_TOKEN before it. So a
    short question overtakes a long document, but only for as long as that document's length allows. Equals
    keep their order. The preempted go before all others, the latest of them first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order: list[tuple[float, int, Request]] = []  # sorted: bisection finds anybody
        """(turn, number, request): the number decides between equal turns."""
        self._places: dict[str, tuple[float, int]] = {}
        self._count = 0

    def add_request(self, request: Request) -> None:
        # Fixed at arrival, so places never change: who is long or late has a late turn, the earliest is next.
        turn = request.arrival_time + SECONDS_PER_PROMPT_TOKEN * request.num_prompt_tokens
        self._count += 1
        self._insert(request, (turn, self._count))

    def prepend_request(self, request: Request) -> None:
        self._count += 1
        self._insert(request, (-math.inf, -self._count))

    def peek_request(self) -> Request:
        if not self._order:
            raise IndexError("no request waits")
        return self._order[0][2]

    def pop_request(self) -> Request:
        request = self.peek_request()
        self.remove_request(request)
        return request

    def remove_request(self, request: Request) -> None:
        place = self._places.pop(request.request_id)
        del self._order[bisect.bisect_left(self._order, place)]
        self.num_prompt_tokens -= request.num_prompt_tokens

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Request]:
        return iter([request for _, _, request in self._order])

    def _insert(self, request: Request, place: tuple[float, int]) -> None:
        self._places[request.request_id] = place
        bisect.insort(self._order, (*place, request))
        self.num_prompt_tokens += request.num_prompt_tokens


_QUEUES: dict[str, type[RequestQueue]] = {
    "fcfs": FCFSRequestQueue,
    "priority": PriorityRequestQueue,
    "shortest": ShortestFirstRequestQueue,
}


def create_request_queue(policy: Policy) -> RequestQueue:
    return _QUEUES[policy]()
