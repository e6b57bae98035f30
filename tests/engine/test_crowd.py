"""Whatever a request asks for, it gets in a crowd what it gets alone.

Random requests with everything SamplingParams has, through engines whose pools are too small for them:
chunked prompts, preemptions, prefix hits, aborts, async scheduling. Seeds are fixed, so that a failure comes
again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from learnvllm.architecture.outputs import RequestOutput, TokenLogprobs
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.assembly import build_llm_engine
from learnvllm.engine_core.llm_engine import LLMEngine
from tests.engine.engines import make_config

ROUNDS = 20
MAX_MODEL_LEN = 96
VOCAB_SIZE = 320
TEXTS = ["a", "b", "e", "t", " ", "th", "\n"]
KINDS = list(RequestOutputKind)
FINAL = RequestOutputKind.FINAL_ONLY


def random_params(rng: random.Random) -> SamplingParams:
    def maybe(share: float, *choices: Any) -> dict[str, Any]:
        return rng.choice(choices) if rng.random() < share else {}

    max_tokens = rng.randint(1, 25)
    ids = [rng.randrange(VOCAB_SIZE) for _ in range(20)]
    wishes = [
        maybe(0.6, *({"temperature": t, "seed": s} for t in (0.3, 1.0, 2.0) for s in (0, 5, 2**40, -3))),
        maybe(0.3, {"top_k": 1}, {"top_k": 5}, {"top_p": 0.1}, {"top_p": 0.9}, {"min_p": 0.05}),
        maybe(0.25, {"repetition_penalty": 0.7}, {"repetition_penalty": 1.3}),
        maybe(0.25, {"frequency_penalty": -1.0}, {"presence_penalty": 1.5}),
        maybe(0.3, {"min_tokens": rng.randint(0, max_tokens)}),
        maybe(0.3, {"ignore_eos": True}, {"skip_special_tokens": False}),
        maybe(0.3, *({"stop": rng.sample(TEXTS, 2), "include_stop_str_in_output": i} for i in (True, False))),
        maybe(0.3, {"stop_token_ids": ids}, {"bad_words": rng.sample(TEXTS, 2)}),
        maybe(0.2, {"logit_bias": {ids[0]: -100.0, ids[1]: 5.0}}),
        maybe(0.5, {"logprobs": 0}, {"logprobs": 5}),
        maybe(0.4, {"prompt_logprobs": 0}, {"prompt_logprobs": 5}),
    ]
    wanted = {"temperature": 0.0, "n": rng.choice([1, 1, 1, 2, 3]), "max_tokens": max_tokens}
    return SamplingParams(**{name: value for wish in (wanted, *wishes) for name, value in wish.items()})


def random_engine_flags(rng: random.Random) -> dict[str, Any]:
    return {
        "num_blocks": rng.randint(14, 40),
        "block_size": rng.choice([4, 8, 16]),
        "budget": rng.choice([5, 16, 40, 256]),
        "max_num_seqs": rng.randint(2, 8),
        "prefix_caching": rng.random() < 0.8,
        "async_scheduling": rng.random() < 0.5,
        "policy": rng.choice(["fcfs", "priority", "shortest"]),
        "long_prefill_token_threshold": rng.choice([0, 0, 7]),
        "prefill_tokens_per_decode": rng.choice([None, 0, 3]),
    }


def random_prompt(rng: random.Random) -> list[int]:
    """Prompts share one of two beginnings, so that the prefix cache is hit."""
    common = random.Random(rng.randrange(2))
    beginning = [common.randrange(3, VOCAB_SIZE) for _ in range(40)][: rng.randint(0, 40)]
    return beginning + [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 12))]


class Crowd:
    """Requests that come while others run; some are aborted."""

    def __init__(self, engine: LLMEngine, rng: random.Random) -> None:
        self.engine, self.rng = engine, rng
        self.requests: dict[str, tuple[list[int], SamplingParams]] = {}
        self.outputs: dict[str, list[RequestOutput]] = {}

    def run(self, count: int) -> None:
        to_come = count
        while to_come or self.engine.has_unfinished_requests():
            while to_come and self.rng.random() < 0.5:
                self._add(f"r{to_come}")
                to_come -= 1
            if self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    self.outputs[output.request_id].append(output)
                self.engine.engine_core.core.scheduler.check_invariants()  # type: ignore[attr-defined]
            if self.requests and self.rng.random() < 0.03:
                aborted = self.rng.choice(list(self.requests))
                self.engine.abort_request([aborted])
                del self.requests[aborted]

    def _add(self, request_id: str) -> None:
        prompt, params = random_prompt(self.rng), random_params(self.rng)
        if len(prompt) + params.max_tokens > min(
            MAX_MODEL_LEN, self.engine.engine_core.ready.kv_cache_tokens
        ):
            return
        self.requests[request_id], self.outputs[request_id] = (prompt, params), []
        streamed = msgspec.structs.replace(
            params, output_kind=self.rng.choice(KINDS), stream_interval=self.rng.choice([1, 1, 3])
        )
        is_by_priority = self.engine.config.scheduler_config.policy == "priority"
        priority = self.rng.randint(-1, 1) if is_by_priority else 0
        self.engine.add_request(request_id, prompt, streamed, priority=priority)


def alone(engine: LLMEngine, request_id: str, prompt: list[int], params: SamplingParams) -> RequestOutput:
    engine.add_request(request_id, prompt, msgspec.structs.replace(params, output_kind=FINAL))
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs[-1]


def check_same(outputs: list[RequestOutput], expected: RequestOutput) -> None:
    """`outputs`: of any kind. What they say together is what `expected` says."""
    prompt_logprobs = [o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None]
    check_logprobs(prompt_logprobs[-1] if prompt_logprobs else None, expected.prompt_logprobs)
    for completion in expected.outputs:
        parts = [c for output in outputs for c in output.outputs if c.index == completion.index]
        are_deltas = sum(len(part.token_ids) for part in parts) == len(completion.token_ids)
        said = parts if are_deltas else parts[-1:]
        assert [token for part in said for token in part.token_ids] == completion.token_ids
        assert "".join(part.text for part in said) == completion.text
        assert parts[-1].finish_reason == completion.finish_reason
        assert parts[-1].stop_reason == completion.stop_reason
        logprobs = [entry for part in said for entry in part.logprobs or ()]
        check_logprobs(logprobs or None, completion.logprobs)


def check_logprobs(
    got: list[TokenLogprobs | None] | list[TokenLogprobs] | None,
    expected: list[TokenLogprobs | None] | list[TokenLogprobs] | None,
) -> None:
    assert (got is None) == (expected is None)
    assert len(got or ()) == len(expected or ())
    for entry, other in zip(got or (), expected or ()):
        assert (entry is None) == (other is None)
        assert {i: (e.rank, e.decoded_token) for i, e in (entry or {}).items()} == {
            i: (e.rank, e.decoded_token) for i, e in (other or {}).items()
        }
        for token_id, logprob in (entry or {}).items():
            assert logprob.logprob == pytest.approx((other or {})[token_id].logprob, abs=5e-3)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_in_a_crowd_everybody_gets_what_he_gets_alone(tiny_model: Callable[[str], Any], kind: str) -> None:
    directory = tiny_model(kind).directory

    def build(**flags: Any) -> LLMEngine:
        return build_llm_engine(
            make_config(directory, max_model_len=MAX_MODEL_LEN, **flags), multiprocess=False
        )

    roomy = build(num_blocks=200, budget=256, prefix_caching=False)
    num_preempted = num_hits = 0
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        crowd = Crowd(build(**random_engine_flags(rng)), rng)
        crowd.run(count=rng.randint(4, 12))
        for request_id, (prompt, params) in crowd.requests.items():
            outputs = crowd.outputs[request_id]
            check_same(outputs, alone(roomy, request_id, prompt, params))
            num_preempted += any(output.metrics.num_preemptions for output in outputs)
            num_hits += outputs[-1].num_cached_tokens > 0
        crowd.engine.shutdown()
    roomy.shutdown()
    assert num_preempted > ROUNDS // 5
    assert num_hits > ROUNDS // 5
