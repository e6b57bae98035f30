"""Whatever arrives whenever, is aborted whenever, in a pool of whatever size: every token is the oracle's.

Hypothesis drives one engine core; who owns which block is checked after every step. Each request is compared
with what transformers gives for it alone.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.messages import FinishReason
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.build import build_engine_core
from tests.engine.engines import make_config, make_request

MAX_MODEL_LEN = 64
PREFIXES = 3  # prompts share a few beginnings, so that the prefix cache is hit


class EngineMachine(RuleBasedStateMachine):
    model: Any

    def __init__(self) -> None:
        super().__init__()
        self.core: Any = None
        self.running: dict[str, tuple[list[int], int, bool]] = {}
        """Request id -> prompt, max_tokens, ignore_eos."""
        self.prompts: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.num_requests = 0

    @initialize(
        num_blocks=st.integers(4, 40),
        block_size=st.sampled_from([1, 4, 8, 16]),
        budget=st.sampled_from([3, 8, 32, 256]),
        max_num_seqs=st.integers(1, 6),
        prefix_caching=st.booleans(),
        async_scheduling=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority"]),
    )
    def start(self, num_blocks: int, policy: str, **config: Any) -> None:
        self.policy = policy
        self.core = build_engine_core(
            make_config(
                self.model.directory,
                num_blocks=num_blocks,
                max_model_len=MAX_MODEL_LEN,
                policy=policy,
                long_prefill_token_threshold=0,
                **config,
            )
        )
        self.fits = self.core.ready_message().kv_cache_tokens

    @rule(
        prefix=st.integers(0, PREFIXES - 1),
        prefix_length=st.integers(0, 30),
        own_length=st.integers(0, 12),
        max_tokens=st.integers(1, 12),
        ignore_eos=st.booleans(),
        priority=st.integers(-1, 1),
    )
    def arrive(
        self,
        prefix: int,
        prefix_length: int,
        own_length: int,
        max_tokens: int,
        ignore_eos: bool,
        priority: int,
    ) -> None:
        rng = random.Random(prefix)
        prompt = [rng.randrange(3, self.model.vocab_size) for _ in range(prefix_length)]
        prompt += [3 + (self.num_requests * 37 + i) % 300 for i in range(own_length)]
        request_id = f"r{self.num_requests}"
        self.num_requests += 1
        request = make_request(
            self.core,
            request_id,
            prompt,
            SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos),
            priority=priority if self.policy == "priority" else 0,
            arrival_time=float(self.num_requests),
        )
        if not prompt or len(prompt) > self.fits:
            with pytest.raises(ValidationError):
                self.core.add_request(request)
            return
        self.core.add_request(request)
        self.running[request_id] = (prompt, max_tokens, ignore_eos)
        self.prompts[request_id], self.tokens[request_id] = prompt, []

    @precondition(lambda self: self.running)
    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        self.core.abort_requests([request_id])
        del self.running[request_id]
        self._check_beginning(request_id)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def abort_while_a_step_runs(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        pending = [[request_id]]
        self.core.take_aborts = lambda: pending.pop() if pending else []
        while pending and request_id in self.running:
            self._step()
        self.core.take_aborts = None
        if pending:
            return  # it had finished before
        self.running.pop(request_id, None)

    @rule()
    def reset_prefix_cache(self) -> None:
        holds_blocks = any(self.core.scheduler.kv_cache_manager.has_blocks(r) for r in self.running)
        assert self.core.reset_prefix_cache() is not holds_blocks

    def _step(self) -> None:
        outputs, _ = self.core.step()
        self.core.scheduler.check_invariants()
        for output in outputs[0].outputs if outputs else []:
            assert output.request_id in self.running, "an output of a request that has ended"
            self.tokens[output.request_id].extend(output.new_token_ids)
            if output.finished:
                self._check_finished(output.request_id, output.finish_reason)

    def _check_finished(self, request_id: str, reason: FinishReason | None) -> None:
        prompt, max_tokens, ignore_eos = self.running.pop(request_id)
        tokens = self.tokens[request_id]
        room = min(MAX_MODEL_LEN, self.fits + 1) - len(prompt)
        ended = not ignore_eos and tokens[-1] in self.model.oracle.eos_token_ids
        assert reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        self.model.oracle.check(
            prompt, tokens, max_tokens=min(max_tokens, room), ignore_eos=ignore_eos, context=request_id
        )

    def _check_beginning(self, request_id: str) -> None:
        """What an aborted request had made by then was right, too."""
        prompt, tokens = self.prompts[request_id], self.tokens[request_id]
        if tokens:
            self.model.oracle.check(
                prompt, tokens, max_tokens=len(tokens), ignore_eos=True, context=request_id
            )

    @invariant()
    def counts_agree(self) -> None:
        if self.core is not None:
            assert sum(self.core.get_request_counts()) == len(self.running)

    def teardown(self) -> None:
        if self.core is None:
            return
        while self.core.has_work():
            self._step()
        assert not self.running
        assert self.core.scheduler.kv_cache_manager.usage == 0
        self.core.shutdown()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_any_arrivals_aborts_and_pools_give_the_oracles_tokens(tiny_model, kind: str) -> None:
    model = tiny_model(kind)
    machine = type("EngineMachine", (EngineMachine,), {"model": model})
    machine.TestCase.settings = settings(
        settings.get_profile("learnvllm"), max_examples=25, stateful_step_count=20
    )
    run_machine(machine)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_many_more_arrivals_aborts_and_pools(tiny_model, kind: str) -> None:
    machine = type("EngineMachine", (EngineMachine,), {"model": tiny_model(kind)})
    machine.TestCase.settings = settings(
        settings.get_profile("learnvllm"), max_examples=400, stateful_step_count=40, derandomize=False
    )
    run_machine(machine)


def run_machine(machine: type[EngineMachine]) -> None:
    machine.TestCase().runTest()
