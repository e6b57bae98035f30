"""Stop strings, held back (module, 50 minutes, 15 points).

A stop string may begin in one token and end in another, and what has been streamed cannot be taken back.
Write the part that finds stop strings as early as they are complete, cuts the text exactly there, and holds
back no more than what could still become one, while token ids stay whole. The first `min_tokens` tokens end
no request, whatever stands in them.

Not asked: Bytes that are no character yet: TokenStream is given. Aborting the request in the core:
OutputProcessor does that with what `update` returns.

Read: docs/topics/engine_core/concepts.md
Check: learnvllm check engine_core.stop_strings
"""

from __future__ import annotations

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.detokenizer import StopMatch, TokenStream
from learnvllm.engine_core.tokenizer import Tokenizer


def find_stop_string(text: str, stops: list[str], start: int, include: bool) -> StopMatch | None:
    """The leftmost stop string that ends after `start` in `text` (the shortest of those that begin there).

    Args:
        start: length of the text that was searched before.
        include: keep the stop string in the text.
    """
    # TODO: Search each stop string where a match can end in text[start:]. Leftmost beginning wins, then the
    # shortest. text_length is where the stop string begins, or ends when it is included.
    raise NotImplementedError("TODO: find_stop_string")


def undecided_length(text: str, stops: list[str]) -> int:
    """Length of the longest end of `text` that is a beginning of a stop string, so might become one."""
    # TODO: For each stop string, the longest proper beginning of it that the text ends with; the longest of
    # all.
    raise NotImplementedError("TODO: undecided_length")


class IncrementalDetokenizer:
    """Tokens and text of one completion so far.

    `token_ids` keeps every token, the one that completed a stop string too; `text` is cut there.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], params: SamplingParams) -> None:
        # TODO: See the docstrings here and of the class. You choose the private state; OutputProcessor reads
        # token_ids and text and calls the other methods.
        raise NotImplementedError("TODO: IncrementalDetokenizer.__init__")

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Add tokens; returns the stop string that they complete, if any. Tokens after that one are dropped.

        Args:
            stop_terminated: the last token is a stop token: its text is left out, unless stop strings are
                included in the output.
        """
        # TODO: See the docstrings here and of the class. You choose the private state; OutputProcessor reads
        # token_ids and text and calls the other methods.
        raise NotImplementedError("TODO: IncrementalDetokenizer.update")

    def finish(self) -> str | None:
        """No token follows: give out what was held back. Returns the stop string that completes, if any."""
        # TODO: See the docstrings here and of the class. You choose the private state; OutputProcessor reads
        # token_ids and text and calls the other methods.
        raise NotImplementedError("TODO: IncrementalDetokenizer.finish")

    def next_text(self, finished: bool, delta: bool) -> str:
        """The text that may be shown: all of it so far, or (`delta`) only what was not returned before."""
        # TODO: See the docstrings here and of the class. You choose the private state; OutputProcessor reads
        # token_ids and text and calls the other methods.
        raise NotImplementedError("TODO: IncrementalDetokenizer.next_text")
