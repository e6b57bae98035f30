"""Requests to token ids, the only way in: chat template, tokenizer and length checks, without an engine.

Since it needs no engine it can run anywhere (`/v1/chat/completions/render`, a separate process); what leaves
it is token ids. Upstream namesakes: vllm/renderers/base.py (BaseRenderer), vllm/renderers/hf.py (HfRenderer).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from learnvllm.architecture.errors import ValidationError
from learnvllm.engine_core.tokenizer import Tokenizer
from learnvllm.serving.chat_template import ChatTemplate
from learnvllm.serving.content import ChatMessage, check_unicode

# Unicode normalization may write a text with fewer characters, at most this many to one.
_MAX_NORMALIZATION_SHRINK = 4
_TOKENIZER_THREADS = 2


class ContextLengthError(ValidationError):
    """Prompt, or prompt and max_tokens, exceed max_model_len."""

    code = "context_length_exceeded"


@dataclass(frozen=True)
class RenderedPrompt:
    """What the engine gets, and the text it came from where there was one."""

    token_ids: list[int]
    text: str | None = None


@dataclass(frozen=True)
class ChatParams:
    """How a conversation becomes a prompt."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


class Renderer:
    """Turns messages and prompts into token ids.

    Args:
        tokenizer: the model's.
        max_model_len: tokens a request may have, prompt and output together.
        chat_template: Jinja source to use instead of the model's own.
    Raises:
        ConfigError: the chat template is not valid Jinja.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int, chat_template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        source = chat_template or tokenizer.chat_template
        self.template = None if source is None else ChatTemplate(source, tokenizer.special_tokens)
        self._max_chars = max_model_len * _longest_token(tokenizer)
        # The tokenizer is Rust and lets go of the GIL: a long prompt occupies a thread, not the event loop.
        self._pool = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="render")

    def render_messages(self, messages: list[ChatMessage], params: ChatParams | None = None) -> str:
        """A conversation as the text the model was trained to read.

        Raises:
            ValidationError: the model has no chat template, or the template refuses the conversation.
        """
        if self.template is None:
            raise ValidationError(
                "This model has no chat template, so it cannot chat. Use /v1/completions, or start the "
                "server with --chat-template FILE.",
                parameter="messages",
            )
        params = params or ChatParams()
        return self.template.render(
            messages,
            add_generation_prompt=params.add_generation_prompt,
            continue_final_message=params.continue_final_message,
            kwargs=params.template_kwargs,
        )

    def encode(self, text: str, add_special_tokens: bool, parameter: str = "prompt") -> RenderedPrompt:
        """Tokenize one text.

        Raises:
            ContextLengthError: it is so long that it cannot fit, found out before tokenizing megabytes.
            ValidationError: it has no tokens, or half a surrogate pair.
        """
        if len(text) > self._max_chars:
            raise ContextLengthError(
                f"The prompt has {len(text)} characters, which cannot fit into {self.max_model_len} tokens, "
                "this model's maximum context length. Shorten it.",
                parameter=parameter,
                value=len(text),
            )
        check_unicode(parameter, text)
        token_ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if not token_ids:
            raise ValidationError(
                "The prompt has no tokens. Give at least one to continue from.",
                parameter=parameter,
                value=text,
            )
        return RenderedPrompt(token_ids, text)

    def check_token_ids(self, token_ids: list[int], parameter: str = "prompt") -> RenderedPrompt:
        """Accept a prompt that comes as token ids.

        Raises:
            ValidationError: an id that the vocabulary does not have.
        """
        limit = self.tokenizer.vocab_size
        for token in token_ids:
            if not 0 <= token < limit:
                raise ValidationError(
                    f"{parameter} has the token id {token}; ids run from 0 to {limit - 1}.",
                    parameter=parameter,
                    value=token,
                )
        return RenderedPrompt(token_ids)

    def render_chat(self, messages: list[ChatMessage], params: ChatParams | None = None) -> RenderedPrompt:
        """Messages to token ids. The template writes special tokens itself, so none are added."""
        return self.encode(self.render_messages(messages, params), False, parameter="messages")

    async def render_chat_async(
        self, messages: list[ChatMessage], params: ChatParams | None = None
    ) -> RenderedPrompt:
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, self.render_chat, messages, params
        )

    async def render_prompt_async(
        self, prompt: str | list[int], add_special_tokens: bool = True
    ) -> RenderedPrompt:
        """A completion's prompt, text or token ids, to token ids."""
        if isinstance(prompt, list):
            return self.check_token_ids(prompt)
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, self.encode, prompt, add_special_tokens
        )

    async def decode_async(self, token_ids: list[int], parameter: str) -> str:
        """Token ids to the text they spell, special tokens included.

        Raises:
            ValidationError: an id that the vocabulary does not have.
        """
        self.check_token_ids(token_ids, parameter)
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, self.tokenizer.decode, token_ids, False
        )

    def output_limit(self, prompt: RenderedPrompt, wanted: int | None, parameter: str) -> int:
        """Tokens the answer may have: `wanted`, or (None) whatever fits.

        Args:
            parameter: the field that holds the prompt, for the message.
        Raises:
            ContextLengthError: prompt and `wanted` together do not fit.
        """
        length, room = len(prompt.token_ids), self.max_model_len - len(prompt.token_ids)
        if room < 1:
            raise ContextLengthError(
                f"This model's maximum context length is {self.max_model_len} tokens, but the prompt alone "
                f"has {length}, which leaves no room for an answer. Shorten the prompt.",
                parameter=parameter,
                value=length,
            )
        if wanted is None:
            return room
        if wanted > room:
            raise ContextLengthError(
                f"This model's maximum context length is {self.max_model_len} tokens, but {length + wanted} "
                f"were requested: {length} in the prompt and max_tokens={wanted}. Shorten the prompt, or ask "
                f"for at most {room} tokens.",
                parameter="max_tokens",
                value=wanted,
            )
        return wanted

    def shutdown(self) -> None:
        """End the threads of the `_async` methods; what waits for one is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _longest_token(tokenizer: Tokenizer) -> int:
    """Most characters of text that one token can stand for."""
    longest = max(len(token) for token in tokenizer.backend.get_vocab(with_added_tokens=True))
    return longest * (1 if tokenizer.backend.normalizer is None else _MAX_NORMALIZATION_SHRINK)
