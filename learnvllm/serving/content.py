"""The parts of a request that come in several shapes, brought into one: prompts, stop strings, messages.

Each parser says in one sentence what it wanted and what it got, which a union of types cannot.
Upstream namesakes: vllm/renderers/chat_utils/chat_message.py (parse_chat_messages),
vllm/renderers/inputs/preprocess.py (prompt_to_seq).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.text import is_utf8

ROLES = ("system", "developer", "user", "assistant")
MAX_PROMPTS = 1024
"""In one request, times n (upstream: VLLM_MAX_COMPLETION_PROMPTS)."""
# What an assistant's message may carry because our own answers, and OpenAI's, do.
_NEUTRAL_IN_MESSAGES = {
    "refusal": (None, ""),
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "tool_calls": (None, []),
    "tool_call_id": (None,),
    "reasoning": (None, ""),
    "reasoning_content": (None, ""),
}


@dataclass(frozen=True)
class ChatMessage:
    """One turn of a conversation. `content` is the text, or its parts where the client sent several."""

    role: str
    content: str | list[str]
    name: str | None = None


def shorten(value: Any, limit: int = 80) -> str:
    """repr(value), cut so that an error message stays readable."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """What was probably meant by `name`, if anything. A long name is no slip, and would take long."""
    return get_close_matches(name, list(known), n=1, cutoff=cutoff) if len(name) <= 200 else []


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def check_unicode(parameter: str, value: Any) -> None:
    """Every string in a field, its own name and keys at whatever depth, must be text that can be encoded.

    Raises:
        ValidationError: JSON can spell half a surrogate pair, which is none.
    """
    waiting = [parameter, value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += (part for part in item if not isinstance(part, int))
        elif isinstance(item, str) and not is_utf8(item):
            raise ValidationError(
                f"{shorten(parameter)} holds half a surrogate pair, which is not text. Send valid Unicode.",
                parameter=parameter,
            )


def parse_prompts(value: Any) -> list[str | list[int]]:
    """A string, a list of strings, token ids, or a list of lists of token ids -> a list of prompts.

    Raises:
        ValidationError: anything else, or an empty prompt.
    """
    if isinstance(value, str) or (_is_token_ids(value) and value):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(p, str) or _is_token_ids(p) for p in value):
        raise ValidationError(
            f"prompt={shorten(value)}: prompt must be a string, a list of strings, a list of token ids, or a "
            "list of lists of token ids.",
            parameter="prompt",
            value=value,
        )
    if not value or any(not prompt for prompt in value):
        raise ValidationError(
            "The prompt is empty. Give at least one token to continue from.", parameter="prompt", value=value
        )
    if len(value) > MAX_PROMPTS:
        raise ValidationError(
            f"{len(value)} prompts in one request; at most {MAX_PROMPTS} are accepted. Split them up.",
            parameter="prompt",
            value=len(value),
        )
    check_unicode("prompt", value)
    return value


def parse_stop(value: Any) -> list[str] | None:
    """A string, a list of strings or null -> a list, or None when nothing was said."""
    if value is None:
        return None
    stop = [value] if isinstance(value, str) else value
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise ValidationError(
            f"stop={shorten(value)}: stop must be a string or a list of strings.",
            parameter="stop",
            value=value,
        )
    check_unicode("stop", stop)
    return stop


def parse_messages(value: Any) -> list[ChatMessage]:
    """Check a conversation.

    Raises:
        ValidationError: not a list of messages, an unknown role, or content that is not text.
    """
    if not isinstance(value, list):
        raise ValidationError(
            f"messages={shorten(value)}: messages must be a list of objects with role and content.",
            parameter="messages",
            value=value,
        )
    if not value:
        raise ValidationError("messages is empty. Give at least one message.", parameter="messages")
    return [_parse_message(message, f"messages[{i}]") for i, message in enumerate(value)]


def _parse_message(message: Any, where: str) -> ChatMessage:
    if isinstance(message, ChatMessage):
        return message
    if not isinstance(message, dict):
        raise ValidationError(
            f"{where}={shorten(message)}: a message must be an object with role and content.",
            parameter=where,
            value=message,
        )
    for field, value in message.items():
        if field in ("role", "content", "name"):
            continue
        if value not in _NEUTRAL_IN_MESSAGES.get(field, ()):
            raise ValidationError(
                f"{where}.{field}={shorten(value)}: this field of a message is not supported; leave it out.",
                parameter=f"{where}.{field}",
                value=value,
            )
    role, name = message.get("role"), message.get("name")
    if role not in ROLES:
        raise ValidationError(_role_advice(role, where), parameter=f"{where}.role", value=role)
    if name is not None and not isinstance(name, str):
        raise ValidationError(f"{where}.name must be a string.", parameter=f"{where}.name", value=name)
    content = message.get("content")
    if content is None and role == "assistant":  # as SDKs replay an answer of a tool call or a refusal
        content = ""
    return ChatMessage(role, _parse_content(content, f"{where}.content"), name)


def _role_advice(role: Any, where: str) -> str:
    if role in ("tool", "function"):
        return (
            f"{where}.role={role!r}: tool calling is not implemented yet. "
            "Put the tool's result into a user message."
        )
    return f"{where}.role={shorten(role)}: role must be one of {', '.join(ROLES)}."


def _parse_content(content: Any, where: str) -> str | list[str]:
    if isinstance(content, str):
        check_unicode(where, content)
        return content
    if isinstance(content, list) and content:
        return [_parse_part(part, f"{where}[{i}]") for i, part in enumerate(content)]
    raise ValidationError(
        f"{where}={shorten(content)}: content must be text, or a list of text parts.",
        parameter=where,
        value=content,
    )


def _parse_part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_image", "input_audio", "audio_url", "video_url", "file"):
        raise ValidationError(
            f"{where} has type {kind!r}, but this model reads text only. "
            'Send parts of the form {"type": "text", "text": "..."}.',
            parameter=where,
            value=kind,
        )
    if kind != "text" or not isinstance(part.get("text"), str) or set(part) != {"type", "text"}:
        raise ValidationError(
            f'{where}={shorten(part)}: a part must have the form {{"type": "text", "text": "..."}}.',
            parameter=where,
            value=part,
        )
    check_unicode(where, part["text"])
    text: str = part["text"]
    return text
