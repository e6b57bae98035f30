"""What clients may send, field by field: OpenAI's requests plus vLLM's extra sampling parameters.

Every field is either honoured or refused by name; nothing is dropped silently. A field of the OpenAI API that
we do not implement may still be sent with its neutral value, because SDKs do.
Upstream namesakes: vllm/entrypoints/openai/{completion,chat_completion}/protocol.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator, model_validator

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.serving.content import (
    MAX_PROMPTS,
    ChatMessage,
    check_unicode,
    did_you_mean,
    parse_messages,
    parse_prompts,
    parse_stop,
    shorten,
)
from learnvllm.serving.not_supported import NOT_SUPPORTED, require_neutral

# Request fields that SamplingParams has under the same name.
_PASSED_ON = (
    "n", "seed", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "bad_words",
    "min_tokens", "skip_special_tokens", "prompt_logprobs", "stream_interval",
)  # fmt: skip

_NEWER_NAMES = {"max_completion_tokens": "max_tokens"}
"""Of chat's fields, where completions have the older one only."""


def _optional_messages(value: Any) -> list[ChatMessage] | None:
    return None if value is None else parse_messages(value)


class OpenAIBaseModel(BaseModel):
    """Types are strict ("5" is not 5); unknown fields are refused, with the name that was probably meant."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {}
        for name, value in data.items():
            check_unicode(name, value)
            if name in cls.model_fields:
                known[name] = value
            elif name in NOT_SUPPORTED:
                require_neutral(name, value)
            else:
                guess = did_you_mean(str(_NEWER_NAMES.get(name, name)), cls.model_fields)
                hint = f" Did you mean {guess[0]!r}?" if guess else " Leave it out."
                raise ValidationError(f"Unknown field {shorten(name)}.{hint}", parameter=name, value=value)
        return known


class StreamOptions(OpenAIBaseModel):
    include_usage: bool | None = None
    """Send one more chunk at the end, with the token counts and no choices."""
    continuous_usage_stats: bool | None = None
    """Send the counts so far with every chunk (vLLM's extension)."""


class GenerationRequest(OpenAIBaseModel):
    """What every request that generates may say. None means: not said."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: Annotated[list[str] | None, PlainValidator(parse_stop)] = None
    user: str | None = None
    """A label for the caller's own bookkeeping; by definition it changes nothing about the answer."""
    safety_identifier: str | None = None
    """The newer name of `user`."""
    # vLLM's extensions from here on
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    stream_interval: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @model_validator(mode="after")
    def check_together(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValidationError("stream_options needs stream=true.", parameter="stream_options")
        if self.cache_salt == "":
            raise ValidationError(
                "cache_salt='': must be a non-empty string, or be left out.", parameter="cache_salt"
            )
        return self

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def sampling_params(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """Build and check the SamplingParams.

        Raises:
            ValidationError: a value is out of range.
        """
        values = {name: getattr(self, name) for name in _PASSED_ON if getattr(self, name) is not None}
        kind = RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY
        return SamplingParams(
            **values,
            max_tokens=max_tokens,
            logprobs=logprobs,
            logit_bias=_parse_logit_bias(self.logit_bias),
            output_kind=kind,
        ).verify()


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[list[str | list[int]], PlainValidator(parse_prompts)]
    """One or several prompts, as text or as token ids."""
    max_tokens: int | None = None
    """Default 16, as OpenAI's. 0 is allowed with echo: it scores the prompt."""
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None

    @property
    def scores_prompt_only(self) -> bool:
        return self.max_tokens == 0

    @model_validator(mode="after")
    def check_completion(self) -> CompletionRequest:
        n = 1 if self.n is None else self.n
        if n * len(self.prompt) > MAX_PROMPTS:
            raise ValidationError(
                f"n={n} for {len(self.prompt)} prompts: one request may ask for {MAX_PROMPTS} completions.",
                parameter="n",
                value=n,
            )
        if self.best_of not in (None, n):
            raise ValidationError(
                f"best_of={self.best_of}: must equal n ({n}): ranking unseen candidates is not implemented.",
                parameter="best_of",
                value=self.best_of,
            )
        if self.max_tokens == 0 and not self.echo:
            raise ValidationError(
                "max_tokens=0: must be at least 1 (0 only with echo=true, to score the prompt).",
                parameter="max_tokens",
                value=0,
            )
        if self.max_tokens == 0 and self.stream:
            raise ValidationError("max_tokens=0 cannot be streamed.", parameter="max_tokens", value=0)
        return self

    def to_sampling_params(self, max_tokens: int) -> SamplingParams:
        params = self.sampling_params(max_tokens, self.logprobs)
        if self.echo and params.prompt_logprobs is None:
            params.prompt_logprobs = self.logprobs
        return params


class TemplateOptions(OpenAIBaseModel):
    """How messages become a prompt; shared by chat and /tokenize."""

    add_generation_prompt: bool | None = None
    """End the prompt with the opening of an assistant's turn. Default true."""
    continue_final_message: bool | None = None
    """Leave the last message open, so that the model goes on writing it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """More variables for the model's template."""

    @model_validator(mode="after")
    def check_template_options(self) -> TemplateOptions:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValidationError(
                "continue_final_message and add_generation_prompt contradict each other: the last message is "
                "either continued or answered. Set one of them to false.",
                parameter="continue_final_message",
            )
        return self

    @property
    def wants_generation_prompt(self) -> bool:
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt


class ChatCompletionRequest(TemplateOptions, GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], PlainValidator(parse_messages)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """The newer name of max_tokens. Default: whatever fits into max_model_len."""
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @model_validator(mode="after")
    def check_chat(self) -> ChatCompletionRequest:
        given = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(given) == 2:
            raise ValidationError(
                f"max_tokens={self.max_tokens} and max_completion_tokens={self.max_completion_tokens} "
                "contradict each other; give one of them.",
                parameter="max_completion_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs and self.top_logprobs != 0:
            raise ValidationError("top_logprobs needs logprobs=true.", parameter="top_logprobs")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def to_sampling_params(self, max_tokens: int) -> SamplingParams:
        return self.sampling_params(max_tokens, self.num_logprobs)


class TokenizeRequest(TemplateOptions):
    """POST /tokenize, with a prompt or with messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage] | None, PlainValidator(_optional_messages)] = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt; a chat template brings its own."""
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def check_one_input(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValidationError("Give either prompt or messages.", parameter="prompt")
        if self.prompt is not None:
            for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
                if getattr(self, name):
                    raise ValidationError(f"{name} needs messages.", parameter=name)
        elif self.add_special_tokens:
            raise ValidationError(
                "add_special_tokens=true: a chat template brings its own special tokens.",
                parameter="add_special_tokens",
            )
        return self


class DetokenizeRequest(OpenAIBaseModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")


def _parse_logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    parsed = {}
    for token, value in (bias or {}).items():
        if not _TOKEN_ID.fullmatch(token):  # one spelling each: "5" and "05" would be two values for one id
            raise ValidationError(
                f'logit_bias has the key {shorten(token)}; keys must be token ids, like "42".',
                parameter="logit_bias",
                value=token,
            )
        parsed[int(token)] = value
    return parsed
