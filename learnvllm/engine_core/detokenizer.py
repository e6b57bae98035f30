"""Text out of tokens, one step at a time: never half a character, never a piece of a stop string.

A stop string may span tokens, so the end of the text that could still become one is held back until it is
decided. Upstream namesake: vllm/v1/engine/detokenizer.py (FastIncrementalDetokenizer, check_stop_strings).
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from tokenizers.decoders import DecodeStream

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.tokenizer import REPLACEMENT, Tokenizer

# Prompt tokens the decoder is shown first, so that the first output token is spelled as what follows them.
PROMPT_CONTEXT = 8


class TokenStream:
    """`tokenizers`' DecodeStream, plus a flush: bytes that never became a character are not lost.

    Example: an emoji whose four bytes F0 9F 98 80 a vocabulary spells with three tokens, F0 9F | 98 | 80. The
    first two pushes return "", as their bytes are no character yet and stay pending; the third returns the
    emoji. If the request ends after two, `flush` gives "�" for what is pending.

    Args:
        prompt_token_ids: what comes before the first token pushed.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._context = prompt_token_ids[-PROMPT_CONTEXT:]
        """The tokens of the last text given out: they end on a whole character."""
        self._pending: list[int] = []
        """Tokens since then."""
        self._stream: DecodeStream | None = None
        if not self._decode(self._context).endswith(REPLACEMENT):  # else the prompt ends inside a character
            self._stream = DecodeStream(self._context, skip_special_tokens)

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""
        self._pending.append(token_id)
        if self._stream is None:
            return self._recover()
        try:
            text = self._stream.step(self._tokenizer.backend, token_id)
        except Exception as error:  # the library raises bare Exception
            if not str(error).startswith("Invalid prefix"):
                raise
            # Decoding changed text given out before: byte fallback met invalid UTF-8.
            self._stream = None
            return self._recover()
        if not text:
            return ""
        self._context, self._pending = self._pending, []
        return text

    def _recover(self) -> str:
        """Decode without the stream until text ends on a whole character, then go on with a new stream."""
        whole = self._context + self._pending
        if self._decode(whole).endswith(REPLACEMENT):
            return ""
        text = self.flush()
        if self._decode(self._context).startswith(REPLACEMENT):
            self._context = whole  # begin where a character begins
        self._stream = DecodeStream(self._context, self._skip_special)
        return text

    def flush(self) -> str:
        """Give out what is still pending, incomplete characters as the replacement character."""
        if not self._pending:
            return ""
        before = self._decode(self._context)
        whole = self._decode(self._context + self._pending)
        if not whole.startswith(before):  # the pending bytes complete a character the prompt had begun
            before = _common_prefix(before.rstrip(REPLACEMENT), whole)
        self._context, self._pending = self._pending, []
        return whole[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special)


def _common_prefix(a: str, b: str) -> str:
    return "".join(x for x, y in takewhile(lambda pair: pair[0] == pair[1], zip(a, b)))


class StopMatch(NamedTuple):
    stop: str
    text_length: int
    """Length the text is cut to."""


def find_stop_string(text: str, stops: list[str], start: int, include: bool) -> StopMatch | None:
    """The leftmost stop string that ends after `start` in `text` (the shortest of those that begin there).

    Args:
        start: length of the text that was searched before.
        include: keep the stop string in the text.
    """
    best: tuple[int, int, str] | None = None
    for stop in stops:
        at = text.find(stop, max(0, start - len(stop) + 1))
        if at >= 0 and (best is None or (at, len(stop)) < best[:2]):
            best = (at, len(stop), stop)
    if best is None:
        return None
    at, length, stop = best
    return StopMatch(stop, at + length if include else at)


def undecided_length(text: str, stops: list[str]) -> int:
    """Length of the longest end of `text` that is a beginning of a stop string, so might become one."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest


class IncrementalDetokenizer:
    """Tokens and text of one completion so far.

    `token_ids` keeps every token, the one that completed a stop string too; `text` is cut there.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], params: SamplingParams) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self._stream = TokenStream(tokenizer, prompt_token_ids, params.skip_special_tokens)
        self._stops = params.stop
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._searched = 0
        """Length of the text in which no stop string can end any more."""
        self._streamed = 0

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Add tokens; returns the stop string that they complete, if any. Tokens after that one are dropped.

        Args:
            stop_terminated: the last token is a stop token: its text is left out, unless stop strings are
                included in the output.
        """
        for i, token_id in enumerate(new_token_ids):
            self.token_ids.append(token_id)
            if stop_terminated and i == len(new_token_ids) - 1 and not self._include_stop:
                break
            self.text += self._stream.push(token_id)
            if (stop := self._check_stop()) is not None:
                return stop
        return None

    def finish(self) -> str | None:
        """No token follows: give out what was held back. Returns the stop string that completes, if any."""
        self.text += self._stream.flush()
        return self._check_stop()

    def next_text(self, finished: bool, delta: bool) -> str:
        """The text that may be shown: all of it so far, or (`delta`) only what was not returned before."""
        held = 0 if finished or self._include_stop else undecided_length(self.text, self._stops)
        certain = len(self.text) - held
        if not delta:
            return self.text[:certain]
        begin, self._streamed = self._streamed, max(self._streamed, certain)
        return self.text[begin : self._streamed]

    def _check_stop(self) -> str | None:
        if not self._stops or len(self.text) == self._searched:
            return None
        start, self._searched = self._searched, len(self.text)
        if len(self.token_ids) <= self._min_tokens:
            return None  # min_tokens: a stop string must end after them
        match = find_stop_string(self.text, self._stops, start, self._include_stop)
        if match is None:
            return None
        self.text = self.text[: match.text_length]
        return match.stop


class NoDetokenizer:
    """Stands in when a request wants token ids only (detokenize=False)."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text = ""

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        self.token_ids.extend(new_token_ids)
        return None

    def finish(self) -> str | None:
        return None

    def next_text(self, finished: bool, delta: bool) -> str:
        return ""


Detokenizer = IncrementalDetokenizer | NoDetokenizer


def make_detokenizer(
    tokenizer: Tokenizer | None, prompt_token_ids: list[int], params: SamplingParams
) -> Detokenizer:
    if tokenizer is None or not params.detokenize:
        return NoDetokenizer()
    return IncrementalDetokenizer(tokenizer, prompt_token_ids, params)
