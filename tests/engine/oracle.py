"""The oracle: what transformers' greedy decoding gives for one request at a time.

`check` is teacher-forced: one forward pass over prompt + our output shows, for every position, which token
greedy decoding chooses after the tokens before it. If all of ours are those, they are what `generate` gives,
token for token. Kernels round differently, so there is one exception: where the oracle's two best logits lie
within TIE of each other, either may follow, and the test goes on from the token taken. Such ties are named.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

TIE = 1e-4


class TieWarning(UserWarning):
    """The oracle could not decide between two tokens."""


@dataclass
class Oracle:
    """Args:
    model: a transformers causal language model in eval mode, fp32.
    """

    model: Any

    def __post_init__(self) -> None:
        self._checked: set[tuple[int, ...]] = set()
        self.eos_token_ids = _as_set(self.model.generation_config.eos_token_id)

    @torch.inference_mode()
    def generate(self, prompt: list[int], max_new_tokens: int, ignore_eos: bool = False) -> list[int]:
        """transformers' own generate, greedy."""
        output = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None if ignore_eos else sorted(self.eos_token_ids),
        )
        tokens = output[0, len(prompt) :].tolist()
        assert isinstance(tokens, list)
        return tokens

    @torch.inference_mode()
    def logits(self, token_ids: list[int], last: int = 0) -> torch.Tensor:
        """[tokens, vocabulary], fp32: row i follows token i. `last`: only of that many last tokens."""
        logits: torch.Tensor = self.model(torch.tensor([token_ids]), logits_to_keep=last).logits[0].float()
        return logits

    def check(
        self,
        prompt: list[int],
        output: list[int],
        *,
        max_tokens: int,
        ignore_eos: bool = False,
        context: str = "",
    ) -> None:
        """Raise AssertionError unless `output` is the greedy continuation of `prompt`, cut as it must be."""
        where = f"{context} prompt of {len(prompt)} tokens {prompt[:8]}...: "
        ended = bool(output) and output[-1] in self.eos_token_ids and not ignore_eos
        assert ended or len(output) == max_tokens, f"{where}{len(output)} tokens, expected {max_tokens}"
        if not ignore_eos:
            assert not self.eos_token_ids & set(output[:-1]), f"{where}went on after the end"
        key = (len(prompt), *prompt, *output)
        if key in self._checked:
            return
        logits = self.logits(prompt + output[:-1], last=len(output))
        best = logits.topk(2, dim=-1)
        for i, token in enumerate(output):
            first, second = best.indices[i].tolist()
            if token == first:
                continue
            gap = float(best.values[i, 0] - logits[i, token])
            assert gap <= TIE, (
                f"{where}token {i} is {token}, greedy decoding gives {first} (by {gap:.3g}, then {second})"
            )
            warnings.warn(
                f"{where}tie at token {i}: {first} and {token} differ by {gap:.2g}", TieWarning, stacklevel=2
            )
        self._checked.add(key)


def _as_set(ids: int | list[int] | None) -> set[int]:
    return set() if ids is None else {ids} if isinstance(ids, int) else set(ids)
