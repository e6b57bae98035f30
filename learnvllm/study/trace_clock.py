"""Time for a recording: a clock that only moves when told to, and the front end's thread on it.

How long everything takes is assumed (`Costs`), so that a recording is the same on every machine; what follows
what is the engine's own doing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

from learnvllm.architecture.messages import EngineCoreOutputs


@dataclass(frozen=True)
class Costs:
    """How long everything takes, in units of the picture. Assumed, not measured; the page says so."""

    process: int = 2
    """Front end: a request, from text to token ids."""
    detokenize: int = 2
    """Front end: the outputs of a step, from token ids to text."""
    schedule: int = 2
    update: int = 2
    forward: int = 6
    """Worker: any step, and one more for every `tokens_per_unit` tokens."""
    tokens_per_unit: int = 8


@dataclass(frozen=True)
class Span:
    """Somebody was busy with something for a while."""

    lane: str
    """front, core or worker."""
    name: str
    start: int
    end: int
    step: int | None = None
    requests: tuple[str, ...] = ()
    tokens: int = 0


@dataclass
class Clock:
    """What time it is, and who was busy with what until now."""

    now: int = 0
    spans: list[Span] = field(default_factory=list)

    def spend(self, lane: str, name: str, cost: int, **about: Any) -> None:
        """The core is busy: time passes."""
        self.spans.append(Span(lane, name, self.now, self.now + cost, **about))
        self.now += cost


class FrontEnd:
    """One thread before the core: it makes requests of texts and texts of outputs, whichever is due first."""

    def __init__(self, clock: Clock, costs: Costs) -> None:
        self._clock, self._costs = clock, costs
        self._jobs: list[tuple[int, int, str, int | None, tuple[str, ...]]] = []
        self._count = 0
        self._free_at = 0
        self._sent: list[tuple[int, str]] = []

    def arrive(self, time: int, req_id: str) -> None:
        self._add(time, "process", None, (req_id,))

    def give(self, step: int, outputs: dict[int, EngineCoreOutputs]) -> None:
        ids = tuple(o.request_id for message in outputs.values() for o in message.outputs)
        if ids:
            self._add(self._clock.now, "detokenize", step, ids)

    def take_sent(self) -> list[str]:
        """Requests that have reached the core by now."""
        self._work(self._clock.now)
        sent = [r for at, r in self._sent if at <= self._clock.now]
        self._sent = [(at, r) for at, r in self._sent if at > self._clock.now]
        return sent

    def next_sent(self) -> int | None:
        """When the next request reaches an idle core; None: none is coming."""
        while self._jobs and not self._sent:
            self._work(max(self._jobs[0][0], self._free_at))
        return self._sent[0][0] if self._sent else None

    def finish(self) -> None:
        while self._jobs:
            self._work(max(self._jobs[0][0], self._free_at))

    def _add(self, time: int, name: str, step: int | None, ids: tuple[str, ...]) -> None:
        heapq.heappush(self._jobs, (time, self._count, name, step, ids))
        self._count += 1

    def _work(self, until: int) -> None:
        while self._jobs and (start := max(self._jobs[0][0], self._free_at)) <= until:
            _, _, name, step, ids = heapq.heappop(self._jobs)
            self._free_at = start + getattr(self._costs, name)
            self._clock.spans.append(Span("front", name, start, self._free_at, step, ids))
            if name == "process":
                self._sent.append((self._free_at, ids[0]))
