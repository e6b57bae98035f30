"""The front end's door: a prompt and parameters become an EngineCoreRequest, or an error naming the field.

A caller learns of his mistake here, before anything is queued. The engine does not rely on it, as other
clients may reach it: EngineCore.preprocess_request refuses values that would break a step, the scheduler
(scheduling/admission.py) what could never run. Upstream namesake: vllm/v1/engine/input_processor.py.
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.messages import EngineCoreRequest
from learnvllm.architecture.sampling_params import (
    BAD_WORD_SPELLINGS,
    MAX_BAD_WORDS,
    MAX_FLOAT,
    MAX_INT,
    SamplingParams,
)
from learnvllm.architecture.text import is_utf8
from learnvllm.engine_core.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]
    cache_salt: NotRequired[str]


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt
"""Text, token ids (also a tuple, a range, a numpy array), or either under its name, perhaps with a salt."""


class InputProcessor:
    """Validates requests against one engine.

    Args:
        tokenizer: None where callers bring token ids only.
        kv_cache_tokens: tokens one request can have in the KV pool, as the engine reported when ready.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None, kv_cache_tokens: int) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.kv_cache_tokens = kv_cache_tokens
        self._vocab_size = config.model_config.arch.vocab_size
        self._eos_token_ids = list(config.model_config.arch.eos_token_ids)
        if not self._eos_token_ids and tokenizer is not None and tokenizer.eos_token_id is not None:
            self._eos_token_ids = [tokenizer.eos_token_id]
        self._bad_words: tuple[tuple[str, ...], list[tuple[int, ...]]] = ((), [])
        """The last ones, and their tokens."""

    def process_inputs(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> tuple[str | None, EngineCoreRequest]:
        """Returns the prompt's text, if it came as text, and the request.

        Raises:
            ValidationError: the request cannot be served as it is; says what to change.
        """
        if not isinstance(params, SamplingParams):
            raise ValidationError(
                f"sampling_params must be a SamplingParams, not {type(params).__name__}.",
                parameter="sampling_params",
            )
        params.verify()
        content, own_salt = unwrap_prompt(prompt)
        if own_salt is not None and cache_salt is not None:
            raise ValidationError(
                "cache_salt is given twice: with the prompt and beside it.", parameter="cache_salt"
            )
        cache_salt = own_salt if cache_salt is None else cache_salt
        self._check_labels(request_id, arrival_time, priority, cache_salt)
        text, token_ids = self._tokenize(content)
        self._check_prompt(token_ids, params)
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=self._complete_params(params, len(token_ids)),
            eos_token_ids=self._eos_token_ids,
            arrival_time=time.time() if arrival_time is None else arrival_time,
            priority=priority,
            cache_salt=cache_salt,
        )
        return text, request

    # ---------------------------------------------------------------------------------------- the prompt

    def _tokenize(self, prompt: str | list[int]) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValidationError(
                    "This engine was built without a tokenizer; give prompt_token_ids.", parameter="prompt"
                )
            if not is_utf8(prompt):
                raise ValidationError(
                    "The prompt has lone surrogates: not valid Unicode.", parameter="prompt"
                )
            return prompt, self.tokenizer.encode(prompt)
        return None, prompt

    def _check_prompt(self, token_ids: list[int], params: SamplingParams) -> None:
        if not token_ids:
            raise ValidationError(
                "The prompt is empty; give at least one token.", parameter="prompt", value=""
            )
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._vocab_size:
                raise ValidationError(
                    f"prompt_token_ids has token id {token_id}; this model's ids run from 0 to "
                    f"{self._vocab_size - 1}.",
                    parameter="prompt_token_ids",
                    value=token_id,
                )
        length, limit = len(token_ids), self.config.max_model_len
        if length >= limit:
            raise ValidationError(
                f"The prompt has {length} tokens, which leaves no room for output: this model's maximum "
                f"length is {limit} tokens. Shorten the prompt to at most {limit - 1}.",
                parameter="prompt",
                value=length,
            )
        if params.max_tokens is not None and length + params.max_tokens > limit:
            raise ValidationError(
                f"The prompt's {length} tokens and max_tokens={params.max_tokens} make "
                f"{length + params.max_tokens}, above the maximum length of {limit} tokens. Lower "
                f"max_tokens to at most {limit - length}, or shorten the prompt.",
                parameter="max_tokens",
                value=params.max_tokens,
            )
        if length > self.kv_cache_tokens:
            raise ValidationError(
                f"The prompt has {length} tokens, but the KV cache holds {self.kv_cache_tokens}: it could "
                "never run. Shorten the prompt, or give the engine more memory (--gpu-memory-utilization, "
                "--kv-cache-memory-bytes, --num-gpu-blocks-override).",
                parameter="prompt",
                value=length,
            )

    # ------------------------------------------------------------------------------------ the parameters

    def _complete_params(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """A copy with everything filled in that the core needs to know."""
        limit = self.config.model_config.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and value > limit:
                raise ValidationError(
                    f"{name}={value}: this server returns at most {limit} (--max-logprobs).",
                    parameter=name,
                    value=value,
                )
        params.verify_token_ids(self._vocab_size)
        if self.tokenizer is None and (params.stop or params.bad_words):
            raise ValidationError(
                "stop and bad_words need a tokenizer, and this engine was built without one.",
                parameter="stop" if params.stop else "bad_words",
            )
        room = self.config.max_model_len - num_prompt_tokens
        max_tokens = room if params.max_tokens is None else params.max_tokens
        if params.min_tokens > max_tokens:
            raise ValidationError(
                f"min_tokens={params.min_tokens}: at most {max_tokens} tokens can follow this prompt.",
                parameter="min_tokens",
                value=params.min_tokens,
            )
        forbidden = params.bad_words_token_ids + self._tokenize_bad_words(tuple(params.bad_words))
        if len(forbidden) > MAX_BAD_WORDS * BAD_WORD_SPELLINGS:
            raise ValidationError(
                f"bad_words and bad_words_token_ids are {len(forbidden)} sequences of tokens together; "
                f"at most {MAX_BAD_WORDS * BAD_WORD_SPELLINGS} are taken.",
                parameter="bad_words",
                value=len(params.bad_words),
            )
        return msgspec.structs.replace(params, max_tokens=max_tokens, bad_words_token_ids=forbidden)

    def _tokenize_bad_words(self, words: tuple[str, ...]) -> list[list[int]]:
        """Each word as it is spelled at the start of a text and inside one (after a space)."""
        if words != self._bad_words[0]:  # else the prompts of one request have them all
            sequences: dict[tuple[int, ...], None] = {}
            for word in words:
                assert self.tokenizer is not None
                for spelled in (word.lstrip() or word, " " + word.lstrip()):
                    sequences[tuple(self.tokenizer.encode(spelled, add_special_tokens=False))] = None
            sequences.pop((), None)
            self._bad_words = words, list(sequences)
        return [list(sequence) for sequence in self._bad_words[1]]

    # ---------------------------------------------------------------------------------- what comes with it

    def _check_labels(
        self, request_id: object, arrival_time: object, priority: object, cache_salt: object
    ) -> None:
        """Whatever cannot be sent to the core, or not be ordered there, is refused."""
        for name, text in (("request_id", request_id), ("cache_salt", cache_salt)):
            optional = name == "cache_salt" and text is None
            if not optional and not (isinstance(text, str) and is_utf8(text)):
                raise ValidationError(f"{name}={text!r} must be a string.", parameter=name, value=text)
        is_number = isinstance(arrival_time, int | float) and abs(arrival_time) <= MAX_FLOAT
        if arrival_time is not None and not is_number:
            raise ValidationError(
                f"arrival_time={arrival_time!r} must be seconds since the epoch.",
                parameter="arrival_time",
                value=arrival_time,
            )
        if type(priority) is not int or abs(priority) > MAX_INT:
            raise ValidationError(
                f"priority={priority!r} must be a whole number of 32 bits.",
                parameter="priority",
                value=priority,
            )
        policy = self.config.scheduler_config.policy
        if priority != 0 and policy != "priority":
            raise ValidationError(
                f"priority={priority} has no effect under the scheduling policy {policy!r}. Leave it out, or "
                "start the engine with --scheduling-policy priority.",
                parameter="priority",
                value=priority,
            )


def unwrap_prompt(prompt: PromptType) -> tuple[str | list[int], str | None]:
    """What a prompt holds, whatever its form: text or a new list of token ids, and its cache_salt.

    Raises:
        ValidationError: it has none of the forms of PromptType.
    """
    if not isinstance(prompt, dict):
        return _text_or_token_ids(prompt, "prompt"), None
    given: dict[str, Any] = dict(prompt)
    salt = given.pop("cache_salt", None)
    if given.keys() == {"prompt"} and isinstance(given["prompt"], str):
        return given["prompt"], salt
    if given.keys() == {"prompt_token_ids"} and not isinstance(given["prompt_token_ids"], str):
        return _text_or_token_ids(given["prompt_token_ids"], "prompt_token_ids"), salt
    raise ValidationError(
        'prompt: a dictionary holds {"prompt": a string} or {"prompt_token_ids": a list of token ids}, '
        f"perhaps with cache_salt, not {reprlib.repr(prompt)}.",
        parameter="prompt",
    )


def _text_or_token_ids(value: object, parameter: str) -> str | list[int]:
    if isinstance(value, str):
        return value
    token_ids = as_token_ids(value)
    if token_ids is None:
        raise ValidationError(
            f"{parameter} must be a string or a list of token ids, not {_describe(value)}.",
            parameter=parameter,
        )
    return token_ids


def as_token_ids(value: object) -> list[int] | None:
    """A sequence of whole numbers (a list, a tuple, a range, a numpy array) as a list; None if it is none."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Sequence):
        return None
    if not all(_is_whole_number(item) for item in value):
        return None
    return [int(item) for item in value]


def _is_whole_number(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _describe(prompt: object) -> str:
    if isinstance(prompt, list | tuple):
        wrong = next(item for item in prompt if not _is_whole_number(item))
        return f"a {type(prompt).__name__} with {reprlib.repr(wrong)} in it"
    return f"{reprlib.repr(prompt)} ({type(prompt).__name__})"
