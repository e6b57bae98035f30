"""Log-probabilities as the OpenAI API words them: parallel lists for completions, objects for chat.

Upstream namesakes: vllm/entrypoints/openai/completion/serving.py (_create_completion_logprobs),
vllm/entrypoints/openai/chat_completion/serving.py (_create_chat_logprobs).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any

from learnvllm.architecture.outputs import Logprob, TokenLogprobs
from learnvllm.engine_core.tokenizer import REPLACEMENT, Tokenizer
from learnvllm.serving.responses import (
    ChatCompletionLogProbs,
    ChatCompletionTokenLogprob,
    ChatCompletionTopLogprob,
    CompletionLogProbs,
)

# JSON has no -inf.
_LOWEST = -9999.0


class LogprobsFormatter:
    """Words logprobs for one request.

    Args:
        as_token_ids: spell tokens "token_id:42" (return_tokens_as_token_ids): ids are never ambiguous.
    """

    def __init__(self, tokenizer: Tokenizer, as_token_ids: bool) -> None:
        self.tokenizer = tokenizer
        self.as_token_ids = as_token_ids

    def completion(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None],
        num_top: int,
        text_offset: list[int],
    ) -> CompletionLogProbs:
        """One entry per token; `text_offset` is where each begins in the choice's text (see TextPosition).

        The first token of a prompt has no log-probability: None.
        """
        result = CompletionLogProbs(text_offset=text_offset, token_logprobs=[], tokens=[], top_logprobs=[])
        for token_id, entry in zip(token_ids, logprobs):
            own = entry[token_id] if entry else None
            result.tokens.append(self._spell(token_id, own))
            result.token_logprobs.append(None if entry is None else _finite(entry[token_id]))
            result.top_logprobs.append(None if entry is None else self._best(entry, num_top))
        return result

    def _best(self, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
        """The token itself, then the most likely ones. Of tokens spelled alike the first is kept."""
        best: dict[str, float] = {}
        for token_id, logprob in list(entry.items())[: num_top + 1]:
            best.setdefault(self._spell(token_id, logprob), _finite(logprob))
        return best

    def chat(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], num_top: int
    ) -> ChatCompletionLogProbs:
        content = []
        for token_id, entry in zip(token_ids, logprobs):
            likely = sorted(entry.items(), key=lambda item: item[1].rank)[:num_top]
            own = self._chat_entry(token_id, entry[token_id])
            content.append(
                ChatCompletionTokenLogprob(
                    token=own.token,
                    logprob=own.logprob,
                    bytes=own.bytes,
                    top_logprobs=[self._chat_entry(id, lp) for id, lp in likely],
                )
            )
        return ChatCompletionLogProbs(content=content)

    def _chat_entry(self, token_id: int, logprob: Logprob) -> ChatCompletionTopLogprob:
        text = self._text(token_id, logprob)
        return ChatCompletionTopLogprob(
            token=self._spell(token_id, logprob),
            logprob=_finite(logprob),
            bytes=token_bytes(self.tokenizer, token_id, text),
        )

    def _spell(self, token_id: int, logprob: Logprob | None) -> str:
        if self.as_token_ids:
            return f"token_id:{token_id}"
        return self._text(token_id, logprob)

    def _text(self, token_id: int, logprob: Logprob | None) -> str:
        if logprob is None or logprob.decoded_token is None:
            return self.tokenizer.token_text(token_id)
        return logprob.decoded_token


def prompt_logprobs(entries: Sequence[TokenLogprobs | None] | None) -> list[dict[int, Any] | None] | None:
    """vLLM's `prompt_logprobs`: per prompt token {id: {logprob, rank, decoded_token}}."""
    if entries is None:
        return None
    return [
        entry
        and {
            id: {"logprob": _finite(lp), "rank": lp.rank, "decoded_token": lp.decoded_token}
            for id, lp in entry.items()
        }
        for entry in entries
    ]


def _finite(logprob: Logprob) -> float:
    return max(logprob.logprob, _LOWEST)


# ------------------------------------------------------------------------------------------------- bytes


class TextPosition:
    """Counts characters of one text while its tokens come: where does the next one begin?

    A token that begins inside a character, which several tokens may share, begins where the character does.
    Tokens of a stop string, which is cut off, have their places behind the end.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = 0

    def pass_by(self, token: bytes) -> int:
        """Where this token begins; the next one is asked for its end."""
        if token and token[0] & 0xC0 != 0x80:  # it begins a character: the one before stays incomplete
            self._position += len(self._decoder.decode(b"", final=True))
        begin = self._position
        self._position += len(self._decoder.decode(token))
        return begin


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself, or one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Tokenizer, token_id: int, text: str) -> list[int]:
    """The UTF-8 bytes a token stands for, exact even where it is only a piece of a character.

    Args:
        text: the token decoded alone, in which such pieces show as the replacement character.
    """
    spelled = tokenizer.id_to_token(token_id) if REPLACEMENT in text else None
    if spelled is not None:
        if fallback := _BYTE_FALLBACK.fullmatch(spelled):
            return [int(fallback[1], 16)]
        if all(character in _BYTE_LEVEL for character in spelled):
            return [_BYTE_LEVEL[character] for character in spelled]
    return list(text.encode("utf-8"))
