"""How one request wants its next token chosen, and when it wants to stop.

The values are checked here, once, wherever a request comes from; what depends on the model (vocabulary
size, length limits) is checked by the input processor. Upstream namesake: vllm/sampling_params.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import msgspec

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.text import is_utf8

# Below this temperature sampling is greedy: dividing logits by less only overflows.
SAMPLING_EPS = 1e-5
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 512
MAX_ENTRIES = 512
"""Of stop_token_ids and logit_bias. A request's parameters are checked and sent once for each of its prompts,
and meanwhile everybody waits: the longest lists that one may send are what the others may wait for."""
MAX_BAD_WORDS = 256
MAX_BAD_WORD_LENGTH = 64
BAD_WORD_SPELLINGS = 2
"""At the start of a text, and inside one."""
MAX_N = 128
MAX_INT = 2**31 - 1
"""Every whole number but the seed fits in the workers' int32 rows."""
MAX_FLOAT = 1e30
"""Far beyond any use, and its products with logits are still finite in float32."""


class RequestOutputKind(IntEnum):
    """What each RequestOutput carries: everything so far, only what is new, or one final output."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Sampling parameters of a request, as in the OpenAI API where that has a name for them.

    Raises:
        ValidationError: from `verify()` (called on construction by every front door) on a bad value.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """With a seed the tokens depend on (seed, position) only, never on the batch."""
    stop: list[str] = []
    """One string may come bare. Here and in the other lists None means none."""
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """vLLM's default. None: up to max_model_len."""
    min_tokens: int = 0
    logprobs: int | None = None
    """Log-probabilities of this many most likely tokens, besides the sampled one. 0: the sampled one only."""
    prompt_logprobs: int | None = None
    bad_words: list[str] = []
    bad_words_token_ids: list[list[int]] = []
    """Filled in by the input processor from `bad_words`."""
    logit_bias: dict[int, float] = {}
    detokenize: bool = True
    skip_special_tokens: bool = True
    stream_interval: int = 1
    """Tokens buffered between streamed chunks; the first token is never held back."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        """What vLLM's callers may write, brought into the one form that is read."""
        stop: object = self.stop
        if isinstance(stop, str):
            self.stop = [stop]
        for name, empty in _EMPTY.items():
            if getattr(self, name) is None:
                setattr(self, name, empty())

    @property
    def greedy(self) -> bool:
        return self.temperature < SAMPLING_EPS

    def verify(self) -> SamplingParams:
        """Check every value; returns self so that calls chain."""
        self._verify_lengths()  # first: the others look at every entry
        self._verify_types()
        self._verify_sizes()
        self._verify_choice()
        self._verify_stopping()
        self._verify_logprobs()
        return self

    def verify_token_ids(self, vocab_size: int) -> SamplingParams:
        """Check the token ids in it, and how many are asked for, against a model's vocabulary."""
        for name in ("logprobs", "prompt_logprobs"):
            rule = f"must be at most {vocab_size}: this model has no more tokens"
            _require((getattr(self, name) or 0) <= vocab_size, name, getattr(self, name), rule)
        for name, ids in (
            ("logit_bias", self.logit_bias),
            ("stop_token_ids", self.stop_token_ids),
            ("bad_words_token_ids", _numbers_in(self.bad_words_token_ids)),
        ):
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise ValidationError(
                        f"{name} has token id {token_id}; this model's ids run from 0 to {vocab_size - 1}.",
                        parameter=name,
                        value=token_id,
                    )
        return self

    def _verify_lengths(self) -> None:
        for name, limit in _MAX_ENTRIES.items():
            value = getattr(self, name)
            if isinstance(value, list | tuple | dict):
                _require(len(value) <= limit, name, len(value), f"takes at most {limit} entries")

    def _verify_types(self) -> None:
        """A Struct checks no types when made in Python: bad_words="END" would be three letters."""
        fields = self._fields()
        for name, value in fields.items():
            for text in _texts_in(value):
                _require(is_utf8(text), name, value, "must be valid Unicode, without lone surrogates")
        try:
            checked = msgspec.convert(fields, SamplingParams)
        except msgspec.ValidationError as error:
            rule, _, where = str(error).rpartition(" - at ")
            name = re.findall(r"\$\.(\w+)", where)[0]
            value = fields[name]
            message = f"{name}={value!r}: {_in_python(rule)}."
            raise ValidationError(message, parameter=name, value=value) from None
        for name in fields:  # a tuple has become a list, 1 has become 1.0
            setattr(self, name, getattr(checked, name))

    def _verify_sizes(self) -> None:
        """What msgspec cannot send or an array of the workers cannot hold would end the engine, not just the
        request."""
        for name, value in self._fields().items():
            limit = 2**63 - 1 if name == "seed" else MAX_INT
            for number in _numbers_in(value):
                bound = MAX_FLOAT if isinstance(number, float) else limit
                _require(-bound - 1 <= number <= bound, name, number, f"must be at most {bound}")

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def _verify_choice(self) -> None:
        _require(1 <= self.n <= MAX_N, "n", self.n, f"must be between 1 and {MAX_N}")
        _require(self.temperature >= 0, "temperature", self.temperature, "must be 0 (greedy) or above")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "must be above 0 and at most 1")
        _require(self.top_k >= -1, "top_k", self.top_k, "must be -1 or 0 (off) or at least 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "must be between 0 and 1")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, value, "must be between -2 and 2")
        _require(
            self.repetition_penalty >= 1 / MAX_FLOAT,
            "repetition_penalty",
            self.repetition_penalty,
            "must be above 0 (1 is off)",
        )
        for token, bias in self.logit_bias.items():
            _require(-100 <= bias <= 100, "logit_bias", {token: bias}, "values must be between -100 and 100")

    def _verify_stopping(self) -> None:
        _require(
            len(self.stop) <= MAX_STOP_STRINGS,
            "stop",
            len(self.stop),
            f"takes at most {MAX_STOP_STRINGS} strings",
        )
        for text in self.stop:
            _require(bool(text), "stop", text, "strings must not be empty")
            _require(
                len(text) <= MAX_STOP_STRING_LENGTH,
                "stop",
                len(text),
                f"strings may be {MAX_STOP_STRING_LENGTH} characters long",
            )
        _require(
            self.detokenize or not self.stop,
            "stop",
            self.stop,
            "needs detokenize=True: without text there is nothing to match",
        )
        for word in self.bad_words:
            _require(bool(word), "bad_words", word, "strings must not be empty")
            _require(
                len(word) <= MAX_BAD_WORD_LENGTH,
                "bad_words",
                len(word),
                f"strings may be {MAX_BAD_WORD_LENGTH} characters long",
            )
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "must be at least 1")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "must be 0 or above")
        if self.max_tokens is not None:
            _require(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                self.min_tokens,
                f"must not exceed max_tokens ({self.max_tokens})",
            )
        _require(self.stream_interval >= 1, "stream_interval", self.stream_interval, "must be at least 1")

    def _verify_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _require(value >= 0, name, value, "must be 0 or above, or left out")


_EMPTY = {
    "stop": list,
    "stop_token_ids": list,
    "bad_words": list,
    "bad_words_token_ids": list,
    "logit_bias": dict,
}
_MAX_ENTRIES = {
    "stop_token_ids": MAX_ENTRIES,
    "logit_bias": MAX_ENTRIES,
    "bad_words": MAX_BAD_WORDS,
    "bad_words_token_ids": MAX_BAD_WORDS * BAD_WORD_SPELLINGS,
}
_PYTHON_NAMES = {"array": "list", "object": "dict", "null": "None"}


def _in_python(rule: str) -> str:
    """msgspec's complaint about a value, which names the types of JSON, in the words of Python."""
    return re.sub(r"\b(array|object|null)\b", lambda match: _PYTHON_NAMES[match[0]], rule)


def _texts_in(value: Any) -> Iterator[str]:
    """The strings in a field, at whatever depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value:
            yield from _texts_in(item)


def _numbers_in(value: Any) -> Iterator[int | float]:
    """The numbers in a field, at whatever depth: a list of ids, ids as keys, a list of such lists."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict):
        yield from value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers_in(item)


def _require(condition: bool, parameter: str, value: object, rule: str) -> None:
    if not condition:  # written so that NaN, which fails every comparison, is refused too
        raise ValidationError(f"{parameter}={value!r}: {parameter} {rule}.", parameter=parameter, value=value)
