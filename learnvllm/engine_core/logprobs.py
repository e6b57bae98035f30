"""Log-probabilities as a caller reads them: per token a dictionary of candidates with rank and text.

The core sends arrays (LogprobsLists); texts are added here, where the tokenizer is.
Upstream namesake: vllm/v1/engine/logprobs.py (LogprobsProcessor).
"""

from __future__ import annotations

from learnvllm.architecture.messages import LogprobsLists
from learnvllm.architecture.outputs import Logprob, TokenLogprobs
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.tokenizer import Tokenizer


class LogprobsProcessor:
    """Accumulates the log-probabilities of one completion.

    Attributes:
        logprobs: one entry per output token; None when the request asked for none.
        prompt_logprobs: one entry per prompt token known so far, the first None; None when not asked for.
        cumulative_logprob: sum over the output tokens.
    """

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._num_logprobs = params.logprobs
        self._num_prompt_logprobs = params.prompt_logprobs
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.cumulative_logprob: float | None = None if params.logprobs is None else 0.0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            None if params.prompt_logprobs is None else [None]
        )

    def update(self, new: LogprobsLists | None, num_tokens: int) -> None:
        """Add the rows of the first `num_tokens` new output tokens."""
        if self.logprobs is None or self.cumulative_logprob is None or new is None:
            return
        for row in range(num_tokens):
            self.logprobs.append(self._entry(new, row, self._num_logprobs or 0))
            self.cumulative_logprob += float(new.logprobs[row, 0])

    def update_prompt(self, new: LogprobsLists | None) -> None:
        """Add the rows of one chunk of the prompt."""
        if self.prompt_logprobs is None or new is None:
            return
        for row in range(len(new.ranks)):
            self.prompt_logprobs.append(self._entry(new, row, self._num_prompt_logprobs or 0))

    def _entry(self, lists: LogprobsLists, row: int, num: int) -> TokenLogprobs:
        """Column 0 is the token itself, so it comes first in the dictionary, whatever its rank."""
        ids = lists.token_ids[row, : num + 1].tolist()
        values = lists.logprobs[row, : num + 1].tolist()
        ranks = [int(lists.ranks[row]), *range(1, num + 1)]
        entry: TokenLogprobs = {}
        for token_id, value, rank in zip(ids, values, ranks):
            if token_id not in entry:  # the token is often among the most likely, too
                entry[token_id] = Logprob(value, rank, self._text(token_id))
        return entry

    def _text(self, token_id: int) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.token_text(token_id)
