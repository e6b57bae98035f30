"""Random arrivals, aborts, pools, budgets and policies: ownership holds after every call, every output is the
oracle's.

The fake runner checks every KV read on the way, so a wrong block shows when it is read, not when a token
comes out wrong.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.messages import FinishReason
from learnvllm.architecture.request import RequestStatus
from tests.scheduling.fake_runner import VOCAB_SIZE, SchedulerLoop, make_config, oracle

GROUPS = [(None,), (None, 5), (3,), (None, 4, 9), (1, None)]

# Long common beginnings make prefix hits, small lengths make block boundaries.
_STEMS = [[s * 3 + i for i in range(40)] for s in range(2)]
prompts = st.builds(
    lambda stem, length, tail: _STEMS[stem][:length] + tail,
    st.integers(0, 1),
    st.integers(0, 24),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([1, 2, 4, 8]),
        pool_tokens=st.integers(24, 120),
        windows=st.sampled_from(GROUPS),
        budget=st.sampled_from([1, 3, 8, 64]),
        max_num_seqs=st.sampled_from([1, 3, 8]),
        caching=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority", "shortest"]),
        async_scheduling=st.booleans(),
        execute_late=st.booleans(),
        threshold=st.sampled_from([0, 0, 4]),
        per_decode=st.sampled_from([0, 1, 20]),
        watermark=st.sampled_from([0.0, 0.1]),
        chunked=st.sampled_from([True, True, True, False]),
    )
    def start(
        self,
        block_size: int,
        pool_tokens: int,
        windows: tuple[int | None, ...],
        budget: int,
        max_num_seqs: int,
        caching: bool,
        policy: str,
        async_scheduling: bool,
        execute_late: bool,
        threshold: int,
        per_decode: int,
        watermark: float,
        chunked: bool,
    ) -> None:
        config = make_config(
            num_blocks=2 + pool_tokens * len(windows) // block_size,
            block_size=block_size,
            max_model_len=60,
            max_num_batched_tokens=budget if chunked else 64,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=caching,
            watermark=watermark,
            policy=policy,
            long_prefill_token_threshold=threshold,
            prefill_tokens_per_decode=per_decode if chunked else None,
            enable_chunked_prefill=chunked,
        )
        self.loop = SchedulerLoop(
            config, windows, async_scheduling=async_scheduling, execute_late=execute_late
        )
        self.expected: dict[str, tuple[list[int], FinishReason]] = {}
        self.aborted: set[str] = set()

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 20),
        priority=st.integers(0, 2),
        eos=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2),
        min_tokens=st.integers(0, 4),
    )
    def add(self, prompt: list[int], max_tokens: int, priority: int, eos: list[int], min_tokens: int) -> None:
        request_id = f"r{len(self.expected)}"
        min_tokens = min(min_tokens, max_tokens)
        scheduler = self.loop.scheduler
        try:
            self.loop.add(
                request_id,
                prompt,
                max_tokens,
                priority=priority,
                arrival_time=float(len(self.expected)),
                eos_token_ids=eos,
                min_tokens=min_tokens,
            )
        except ValidationError:
            assert len(prompt) > scheduler.num_tokens_that_fit
            return
        self.expected[request_id] = oracle(
            prompt,
            max_tokens,
            max_model_len=scheduler.max_model_len,
            eos_token_ids=eos,
            min_tokens=min_tokens,
        )

    @precondition(lambda self: len(self.loop.in_flight) < self.loop.depth)
    @rule()
    def schedule(self) -> None:
        if self.loop.scheduler.has_requests():
            self.loop.schedule()

    @precondition(lambda self: bool(self.loop.in_flight))
    @rule()
    def update(self) -> None:
        self.loop.update()

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.loop.step()

    @precondition(lambda self: bool(self.expected))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.expected)), min_size=1, max_size=3))
        ended = self.loop.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)
        self.aborted |= {request_id for request_id, _ in ended}
        assert all(request_id not in self.loop.finish_reasons for request_id, _ in ended)

    @rule()
    def reset_prefix_cache(self) -> None:
        running, _ = self.loop.scheduler.get_request_counts()
        assert self.loop.scheduler.reset_prefix_cache() == (running == 0)

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        if hasattr(self, "loop"):
            self.loop.scheduler.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        tokens = self.loop.run()
        for request_id, (expected, reason) in self.expected.items():
            if request_id in self.aborted:
                assert tokens[request_id] == expected[: len(tokens[request_id])]
                assert request_id not in self.loop.finish_reasons
            else:
                assert tokens[request_id] == expected, request_id
                assert self.loop.finish_reasons[request_id] == reason


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40)
