"""Who waits, and who is next (module, 45 minutes, 17 points).

Two queues behind one contract: first come first served, and by priority. Adding and taking is the easy part.
Clients hang up in any order, so anybody must be able to leave from anywhere, and with thousands waiting
nobody may walk through all of them for that. The contract is the table in concepts.md, under "Who is next".

Not asked: Threads: one loop owns the queue.

Read: docs/topics/scheduling/concepts.md
Check: learnvllm check scheduling.request_queue
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from learnvllm.architecture.request import Request
from learnvllm.scheduling.request_queue import RequestQueue


class FCFSRequestQueue(RequestQueue):
    """First come, first served. An OrderedDict: both ends and any middle in O(1)."""

    def __init__(self) -> None:
        # TODO: super().__init__() starts num_prompt_tokens at 0; then whatever keeps an order and finds
        # anybody in it.
        raise NotImplementedError("TODO: FCFSRequestQueue.__init__")

    def add_request(self, request: Request) -> None:
        # TODO: Last in line; count its prompt tokens.
        raise NotImplementedError("TODO: FCFSRequestQueue.add_request")

    def prepend_request(self, request: Request) -> None:
        # TODO: First in line.
        raise NotImplementedError("TODO: FCFSRequestQueue.prepend_request")

    def peek_request(self) -> Request:
        # TODO: Who is first; IndexError when nobody waits.
        raise NotImplementedError("TODO: FCFSRequestQueue.peek_request")

    def pop_request(self) -> Request:
        # TODO: Take out who is first; IndexError when nobody waits.
        raise NotImplementedError("TODO: FCFSRequestQueue.pop_request")

    def remove_request(self, request: Request) -> None:
        # TODO: Take it out from wherever it stands, without a walk; KeyError when it does not wait.
        raise NotImplementedError("TODO: FCFSRequestQueue.remove_request")

    def __len__(self) -> int:
        # TODO: How many wait.
        raise NotImplementedError("TODO: FCFSRequestQueue.__len__")

    def __iter__(self) -> Iterator[Request]:
        # TODO: All who wait, from the first to the last.
        raise NotImplementedError("TODO: FCFSRequestQueue.__iter__")


class PriorityRequestQueue(RequestQueue):
    """Lowest priority value first, then earliest arrival. A heap in which the removed stay, dead."""

    def __init__(self) -> None:
        # TODO: super().__init__(); then a heap, and whatever tells who in it still waits.
        raise NotImplementedError("TODO: PriorityRequestQueue.__init__")

    def add_request(self, request: Request) -> None:
        # TODO: Among the others, by Request's own order; count its prompt tokens.
        raise NotImplementedError("TODO: PriorityRequestQueue.add_request")

    def prepend_request(self, request: Request) -> None:
        """Priority decides, also among the preempted."""
        # TODO: Priority decides, also among the preempted.
        raise NotImplementedError("TODO: PriorityRequestQueue.prepend_request")

    def peek_request(self) -> Request:
        # TODO: The most urgent of those who still wait; IndexError when nobody does.
        raise NotImplementedError("TODO: PriorityRequestQueue.peek_request")

    def pop_request(self) -> Request:
        # TODO: Take out the most urgent; IndexError when nobody waits.
        raise NotImplementedError("TODO: PriorityRequestQueue.pop_request")

    def remove_request(self, request: Request) -> None:
        # TODO: It no longer waits; KeyError when it did not. No walk, and the dead must not pile up.
        raise NotImplementedError("TODO: PriorityRequestQueue.remove_request")

    def __len__(self) -> int:
        # TODO: How many wait: the living.
        raise NotImplementedError("TODO: PriorityRequestQueue.__len__")

    def __iter__(self) -> Iterator[Request]:
        # TODO: All who wait, in the order in which pop_request would hand them out.
        raise NotImplementedError("TODO: PriorityRequestQueue.__iter__")
