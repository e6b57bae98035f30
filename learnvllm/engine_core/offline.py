"""Many prompts at once, all answers at the end: `LLM.generate`.

A mixin that uses nothing but the public face of LLMEngine. Upstream namesake: vllm/entrypoints/llm.py
(OfflineInferenceMixin).
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.outputs import RequestOutput
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core.input_processor import PromptType, as_token_ids
from learnvllm.engine_core.llm_engine import LLMEngine

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")


class OfflineInferenceMixin:
    """`generate` for a class that has an `llm_engine`."""

    llm_engine: LLMEngine
    _request_counter: itertools.count[int]

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, in batches as the scheduler sees fit.

        Args:
            prompts: one prompt or a sequence of them; text, token ids, or a dictionary (see PromptType).
            sampling_params: one for all or one for each prompt.
            priority: one per prompt; lower runs first (--scheduling-policy priority).

        Returns:
            One output per prompt, in the order of the prompts.

        Raises:
            ValidationError: a prompt or parameter cannot be served; none of the prompts runs then.
            QueueFullError: more prompts than may wait (--max-num-queued-reqs, --max-num-queued-tokens).
            EngineDeadError: the engine is gone.
        """
        listed = _as_list(prompts)
        wanted = SamplingParams() if sampling_params is None else sampling_params
        params = _one_each(wanted, SamplingParams, len(listed), "sampling_params")
        priorities = _one_each(0 if priority is None else priority, int, len(listed), "priority")
        for p in params:
            p.verify()  # as the caller wrote it: below his output_kind is replaced
        request_ids: list[str] = []
        try:
            for prompt, p, prio in zip(listed, params, priorities):
                request_id = str(next(self._request_counter))
                final = msgspec.structs.replace(p, output_kind=RequestOutputKind.FINAL_ONLY)
                self.llm_engine.add_request(request_id, prompt, final, priority=prio)
                request_ids.append(request_id)
            return self._run_engine(request_ids, use_tqdm)
        except BaseException:  # Ctrl-C too: the engine stays usable, the next call gets its own results only
            self.llm_engine.abort_request(request_ids)
            raise

    def _run_engine(self, request_ids: list[str], use_tqdm: bool) -> list[RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        ours = set(request_ids)
        bar = _progress_bar(len(request_ids)) if use_tqdm else None
        num_tokens = 0
        try:
            while len(finished) < len(request_ids):
                for output in self.llm_engine.step():
                    if output.request_id not in ours:
                        continue  # of a request that somebody added to the engine directly
                    if output.error is not None:
                        raise output.error
                    finished[output.request_id] = output
                    if bar is not None:
                        num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
                        _advance(bar, num_tokens)
        finally:
            if bar is not None:
                bar.close()
        return [finished[request_id] for request_id in request_ids]


def _as_list(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    """One prompt may come bare: a string, a dictionary, or token ids."""
    if isinstance(prompts, str | dict):
        return [cast(PromptType, prompts)]
    token_ids = as_token_ids(prompts)
    if token_ids:
        return [token_ids]
    if isinstance(prompts, bytes | bytearray | Set) or not isinstance(prompts, Iterable):
        raise ValidationError(
            f"prompts must be a string, token ids, a dictionary, or a list of those, not "
            f"{reprlib.repr(prompts)} ({type(prompts).__name__}).",
            parameter="prompts",
        )
    return cast(list[PromptType], list(prompts))


def _one_each(given: T | Sequence[T], kind: type[T], count: int, parameter: str) -> list[T]:
    """One for all prompts, or one for each, as a list with one for each.

    Raises:
        ValidationError: of another type, or another number of them.
    """
    if isinstance(given, kind):
        return [given] * count
    listed = list(given) if isinstance(given, list | tuple) else [given]
    for item in listed:
        if not isinstance(item, kind):
            raise ValidationError(
                f"{parameter} must be {kind.__name__} or a list of them, not {reprlib.repr(item)} "
                f"({type(item).__name__}).",
                parameter=parameter,
            )
    if len(listed) != count:
        raise ValidationError(
            f"{parameter} has {len(listed)} entries for {count} prompts; give one for all or one for each.",
            parameter=parameter,
            value=len(listed),
        )
    return cast(list[T], listed)


def _progress_bar(total: int) -> tqdm[Any]:
    from tqdm.auto import tqdm

    return tqdm(total=total, desc="Processed prompts", unit="req", dynamic_ncols=True)


def _advance(bar: tqdm[Any], num_tokens: int) -> None:
    elapsed = bar.format_dict["elapsed"]
    bar.set_postfix_str(f"{num_tokens / elapsed:.1f} tok/s" if elapsed else "", refresh=False)
    bar.update()
