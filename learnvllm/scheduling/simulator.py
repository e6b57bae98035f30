"""A scheduler with a clock and without a model: what a rule does to waiting, worked out in a second.

The device is a toy and its time a formula: a step costs so much, and each token so much more. So minutes of
traffic run in a second, and the same every time. No upstream namesake.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.step import SchedulerOutput
from learnvllm.architecture.tracing import StepTracer
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.scheduling.request_queue import RequestQueue
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.toy import Device, ToyDevice, make_prompt, toy_kv_cache

SchedulerFactory = Callable[[EngineConfig, KVCacheConfig, StepTracer | None], Scheduler]

# --------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class Arrival:
    """A request, and the second in which it comes."""

    request_id: str
    time: float
    prompt: Sequence[int]
    max_tokens: int
    priority: int = 0


@dataclass
class Times:
    """What happened to one request, in seconds of the simulation."""

    arrived: float
    scheduled: float = math.nan
    """Beginning of the first step that computed something of it."""
    tokens: list[float] = field(default_factory=list)
    """When each output token was there."""

    @property
    def waited(self) -> float:
        return self.scheduled - self.arrived

    @property
    def time_to_first_token(self) -> float:
        return self.tokens[0] - self.arrived

    @property
    def longest_pause(self) -> float:
        """Between two tokens in a row; 0 for a single token."""
        return max((after - before for before, after in zip(self.tokens, self.tokens[1:])), default=0.0)


def chat_and_documents(
    num_requests: int = 300,
    *,
    rate: float = 4.0,
    share_of_documents: float = 0.1,
    chat: tuple[int, int] = (16, 64),
    document: tuple[int, int] = (800, 1600),
    output: tuple[int, int] = (8, 32),
    seed: int = 0,
) -> list[Arrival]:
    """Traffic as a server meets it: many short questions, a few long documents, arriving at random.

    Args:
        rate: requests a second, on average; the gaps are exponential (a Poisson process).
        share_of_documents: how many of the prompts are long.
        chat, document: range of the prompt lengths of either kind, in tokens.
        output: range of the output lengths.
    """
    rng = random.Random(seed)
    now, arrivals = 0.0, []
    for i in range(num_requests):
        now += rng.expovariate(rate)
        kind = document if rng.random() < share_of_documents else chat
        prompt = make_prompt(rng.randint(*kind), i)
        arrivals.append(Arrival(f"r{i}", now, prompt, rng.randint(*output)))
    return arrivals


@dataclass(frozen=True)
class StepCost:
    """Seconds that a step takes. The defaults are the order of the embedded model on two cores."""

    per_step: float = 0.020
    per_token: float = 0.001

    def seconds(self, output: SchedulerOutput) -> float:
        tokens = output.total_num_scheduled_tokens
        return self.per_step + self.per_token * tokens if tokens else 0.0


# ------------------------------------------------------------------------------------------- simulation


class Simulation:
    """A scheduler, a device and a clock, joined as the engine core's loop joins them.

    Args:
        config: from `toy_config`.
        make_scheduler: its class.
        queue: waits here instead of in the queue of the configured policy.
        device: executes the steps.
        cost: how long they take.
        steps_ahead: schedule so many steps before the output of one is taken in: 0, or 1 if AsyncScheduler.
        tracer: receives a StepEvent per step.
        check: after every call, raise AssertionError if queues, requests and blocks disagree.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        make_scheduler: SchedulerFactory = Scheduler,
        queue: RequestQueue | None = None,
        device: Device | None = None,
        cost: StepCost | None = None,
        steps_ahead: int = 0,
        tracer: StepTracer | None = None,
        check: bool = False,
    ) -> None:
        self.scheduler = make_scheduler(config, toy_kv_cache(config), tracer)
        if queue is not None:
            self.scheduler.waiting = queue
        self.device = device or ToyDevice()
        self.cost = cost or StepCost()
        self.check = check
        self.now = 0.0
        self.steps: list[SchedulerOutput] = []
        self.times: dict[str, Times] = {}
        self.tokens: dict[str, list[int]] = {}
        self._depth = steps_ahead + 1
        self._in_flight: deque[SchedulerOutput] = deque()

    def add(self, arrival: Arrival) -> Request:
        """Hand a request to the scheduler, at its own time of arrival."""
        request = Request(
            arrival.request_id,
            list(arrival.prompt),
            SamplingParams(max_tokens=arrival.max_tokens),
            arrival_time=arrival.time,
            priority=arrival.priority,
            block_hasher=self.scheduler.block_hasher,
        )
        self.scheduler.add_request(request)
        self.times[arrival.request_id] = Times(arrival.time)
        self.tokens[arrival.request_id] = []
        return request

    def run(self, arrivals: Iterable[Arrival] = (), max_steps: int = 100_000) -> Simulation:
        """Until nothing is left of them and of those added before.

        Raises:
            AssertionError: that takes more than `max_steps` steps.
        """
        coming = deque(sorted(arrivals, key=lambda arrival: arrival.time))
        for _ in range(max_steps):
            if not self.is_busy:
                if not coming:
                    return self
                self.now = max(self.now, coming[0].time)
            while coming and coming[0].time <= self.now:
                self.add(coming.popleft())
            self.step()
        running, waiting = self.scheduler.get_request_counts()
        raise AssertionError(f"not done after {max_steps} steps: {running} run, {waiting} wait")

    @property
    def is_busy(self) -> bool:
        return self.scheduler.has_requests() or bool(self._in_flight)

    def step(self) -> SchedulerOutput | None:
        """Schedule as far ahead as allowed, then execute the oldest step; None when there was none."""
        while self.scheduler.has_requests() and len(self._in_flight) < self._depth:
            self.schedule()
        return self.update() if self._in_flight else None

    def schedule(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        self.steps.append(output)
        self._in_flight.append(output)
        for request_id in output.num_scheduled_tokens:
            times = self.times[request_id]
            if math.isnan(times.scheduled):
                times.scheduled = self.now
        self._check()
        return output

    def update(self) -> SchedulerOutput:
        """Execute the oldest step in flight, and let the clock and the scheduler know."""
        output = self._in_flight.popleft()
        result = self.device.execute(output)
        self.now += self.cost.seconds(output)
        for message in self.scheduler.update_from_output(output, result).values():
            for out in message.outputs:
                self.tokens[out.request_id] += out.new_token_ids
                self.times[out.request_id].tokens += [self.now] * len(out.new_token_ids)
        self._check()
        return output

    @property
    def num_preemptions(self) -> int:
        return sum(len(output.preempted_req_ids) for output in self.steps)

    @property
    def num_computed_tokens(self) -> int:
        """Of all steps. What was computed twice counts twice."""
        return sum(output.total_num_scheduled_tokens for output in self.steps)

    def _check(self) -> None:
        if self.check:
            self.scheduler.check_invariants()


def nearest_rank(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least `percent` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]
