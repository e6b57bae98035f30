"""A slot that never fills up (module, 35 minutes, 14 points).

Between the engine, which makes a token every few milliseconds, and a client on a slow line stands one object
per request. Write it so that the engine never waits, memory never grows, nothing is lost or told twice, an
error reaches the client whatever came before, and a client that gives up waiting takes nothing with it.

Not asked: Threads: put and get are called in one event loop. Who aborts a request that its client has left:
AsyncLLM.generate does that around `get`.

Read: docs/topics/engine_core/concepts.md
Check: learnvllm check engine_core.output_collector
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from learnvllm.architecture.outputs import CompletionOutput, RequestOutput
from learnvllm.architecture.sampling_params import RequestOutputKind


class RequestOutputCollector:
    """A slot for one output or one exception. Both ends live in one event loop."""

    def __init__(self, output_kind: RequestOutputKind) -> None:
        # TODO: See the docstrings. One slot; put merges what has not been taken with what comes.
        raise NotImplementedError("TODO: RequestOutputCollector.__init__")

    def put(self, output: RequestOutput | Exception) -> None:
        """Never blocks. An exception takes the place of any output not yet taken; nothing takes its own."""
        # TODO: See the docstrings. One slot; put merges what has not been taken with what comes.
        raise NotImplementedError("TODO: RequestOutputCollector.put")

    def get_nowait(self) -> RequestOutput | None:
        """The stored output, or None. Raises the stored exception."""
        # TODO: See the docstrings. One slot; put merges what has not been taken with what comes.
        raise NotImplementedError("TODO: RequestOutputCollector.get_nowait")

    async def get(self) -> RequestOutput:
        # TODO: See the docstrings. One slot; put merges what has not been taken with what comes.
        raise NotImplementedError("TODO: RequestOutputCollector.get")


def merge_outputs(old: RequestOutput, new: RequestOutput, delta: bool) -> RequestOutput:
    """One output that says what `old`, then `new` said. Completions are matched by index."""
    # TODO: Completions by index: one that only `old` has stays, one that only `new` has is added, one that
    # both have is joined (delta) or replaced; the result has them in the order of their index. The rest is
    # new's, except prompt_logprobs that only old has. `dataclasses.replace` makes the result.
    raise NotImplementedError("TODO: merge_outputs")
