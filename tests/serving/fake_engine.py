"""An engine that knows the answer in advance: what serving asks of AsyncLLM, without a model.

It writes ANSWER again and again, a token a turn. Real are the input checks and the detokenizer, so that what
serving refuses and shows is the same as with the real one. It can be made slow, full or dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from learnvllm.architecture.config import EngineConfig, ModelConfig
from learnvllm.architecture.errors import EngineDeadError, LearnVLLMError
from learnvllm.architecture.outputs import CompletionOutput, Logprob, RequestOutput, TokenLogprobs
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core.detokenizer import make_detokenizer
from learnvllm.engine_core.input_processor import InputProcessor
from learnvllm.scheduling.toy import toy_architecture
from tests.serving.fake_tokenizer import EOS_ID, fake_tokenizer

ANSWER = " the world of blocks and tokens; "
MAX_MODEL_LEN = 256
MODEL = "tiny"


def fake_config() -> EngineConfig:
    arch = toy_architecture(
        vocab_size=fake_tokenizer().vocab_size,
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_ids=(EOS_ID,),
    )
    return EngineConfig(model_config=ModelConfig(model=MODEL, path=Path("/nowhere"), arch=arch))


class FakeEngine:
    """Satisfies serving's EngineClient.

    Attributes:
        token_seconds: pause before each token.
        refuse: raised for every new request.
        running: ids of the requests being answered.
        aborted: ids of those that were closed before their end.
        prompts: token ids of every request so far.
    """

    def __init__(self, token_seconds: float = 0.0) -> None:
        self.config = fake_config()
        self.tokenizer = fake_tokenizer()
        self.input_processor = InputProcessor(self.config, self.tokenizer, kv_cache_tokens=10_000)
        self.token_seconds = token_seconds
        self.refuse: LearnVLLMError | None = None
        self.fail_after: int | None = None
        """Die after this many tokens of a request."""
        self.prompt_logprobs_at = 1
        """The step of a stream that brings them: with several choices it need not be the first."""
        self.dead = False
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.prompts: list[list[int]] = []
        self._answer = self.tokenizer.encode(ANSWER)

    @property
    def errored(self) -> bool:
        return self.dead

    @property
    def dead_error(self) -> LearnVLLMError:
        return EngineDeadError("The engine process died.")

    def metrics_text(self) -> str:
        return f"vllm:num_requests_running {len(self.running)}\n"

    def shutdown(self) -> None:
        pass

    async def generate(
        self,
        prompt: list[int],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        if self.dead:
            raise self.dead_error
        if self.refuse is not None:
            raise self.refuse
        _, request = self.input_processor.process_inputs(
            request_id, prompt, sampling_params, priority=priority, cache_salt=cache_salt
        )
        self.prompts.append(request.prompt_token_ids)
        self.running.add(request_id)
        finished = False
        try:
            async for output in self._run(request_id, request.prompt_token_ids, request.sampling_params):
                finished = output.finished
                yield output
        finally:
            self.running.discard(request_id)
            if not finished:
                self.aborted.append(request_id)

    async def _run(
        self, request_id: str, prompt: list[int], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        """All n completions advance in step; completion i begins i tokens into the answer."""
        delta = params.output_kind is RequestOutputKind.DELTA
        detokenizers = [make_detokenizer(self.tokenizer, prompt, params) for _ in range(params.n)]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in range(params.n)]
        reasons: list[str | None] = [None] * params.n
        stops: list[str | None] = [None] * params.n
        prompt_logprobs = self._prompt_logprobs(prompt, params)
        step = 0
        while not all(reasons):
            await asyncio.sleep(self.token_seconds)
            if self.fail_after is not None and step >= self.fail_after:
                self.dead = True
            if self.dead:
                raise self.dead_error
            outputs = []
            for i, detokenizer in enumerate(detokenizers):
                if reasons[i]:
                    continue
                token = self._answer[(step + i) % len(self._answer)]
                logprobs[i].append(self._entry(token, params.logprobs or 0))
                stops[i] = detokenizer.update([token], stop_terminated=False)
                if stops[i] is not None:
                    reasons[i] = "stop"
                elif step + 1 == params.max_tokens:
                    reasons[i] = "length"
                    detokenizer.finish()
                if delta or reasons[i]:
                    outputs.append(
                        CompletionOutput(
                            index=i,
                            text=detokenizer.next_text(finished=bool(reasons[i]), delta=delta),
                            token_ids=detokenizer.token_ids[-1:] if delta else detokenizer.token_ids,
                            logprobs=(logprobs[i][-1:] if delta else logprobs[i])
                            if params.logprobs is not None
                            else None,
                            finish_reason=reasons[i],
                            stop_reason=stops[i],
                        )
                    )
            step += 1
            if outputs:
                yield RequestOutput(
                    request_id=request_id,
                    prompt=None,
                    prompt_token_ids=prompt,
                    outputs=outputs,
                    finished=all(reasons),
                    prompt_logprobs=prompt_logprobs if step == self.prompt_logprobs_at or not delta else None,
                )

    def _entry(self, token: int, num: int) -> TokenLogprobs:
        """The token itself first (rank 1, -0.5), then the ids 10, 11, ... as runners-up."""
        entry = {token: Logprob(-0.5, 1, self.tokenizer.token_text(token))}
        for rank in range(2, num + 1):
            entry[8 + rank] = Logprob(-float(rank), rank, self.tokenizer.token_text(8 + rank))
        return entry

    def _prompt_logprobs(
        self, prompt: list[int], params: SamplingParams
    ) -> list[TokenLogprobs | None] | None:
        if params.prompt_logprobs is None:
            return None
        num = params.prompt_logprobs
        return [None, *(self._entry(token, num) for token in prompt[1:])]
