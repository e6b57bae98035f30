"""Hands one request's outputs to the coroutine that waits for them; a slow consumer gets merged outputs.

Between two `get`s there is never more than one output in store, however far the engine runs ahead.
Upstream namesake: vllm/v1/engine/output_processor.py (RequestOutputCollector).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from learnvllm.architecture.outputs import CompletionOutput, RequestOutput
from learnvllm.architecture.sampling_params import RequestOutputKind


class RequestOutputCollector:
    """A slot for one output or one exception. Both ends live in one event loop."""

    def __init__(self, output_kind: RequestOutputKind) -> None:
        self._delta = output_kind is RequestOutputKind.DELTA
        self._output: RequestOutput | Exception | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput | Exception) -> None:
        """Never blocks. An exception takes the place of any output not yet taken; nothing takes its own."""
        if isinstance(self._output, Exception):
            return
        if self._output is None or isinstance(output, Exception):
            self._output = output
        else:
            self._output = merge_outputs(self._output, output, self._delta)
        self._ready.set()

    def get_nowait(self) -> RequestOutput | None:
        """The stored output, or None. Raises the stored exception."""
        output, self._output = self._output, None
        self._ready.clear()
        if isinstance(output, Exception):
            raise output
        return output

    async def get(self) -> RequestOutput:
        while (output := self.get_nowait()) is None:
            await self._ready.wait()
        return output


def merge_outputs(old: RequestOutput, new: RequestOutput, delta: bool) -> RequestOutput:
    """One output that says what `old`, then `new` said. Completions are matched by index."""
    merged = {completion.index: completion for completion in old.outputs}
    for completion in new.outputs:
        before = merged.get(completion.index)
        merged[completion.index] = _join(before, completion) if delta and before else completion
    return replace(
        new,
        outputs=[merged[index] for index in sorted(merged)],
        prompt_logprobs=new.prompt_logprobs if new.prompt_logprobs is not None else old.prompt_logprobs,
    )


def _join(old: CompletionOutput, new: CompletionOutput) -> CompletionOutput:
    logprobs = None if new.logprobs is None else (old.logprobs or []) + new.logprobs
    return replace(new, text=old.text + new.text, token_ids=old.token_ids + new.token_ids, logprobs=logprobs)
