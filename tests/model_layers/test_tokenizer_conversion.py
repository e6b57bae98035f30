"""The converted tokenizer cuts text as the original does, the embedded model's above all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.model_layers import embedded
from learnvllm.model_layers.loading.gguf_tokenizer import convert_tokenizer
from tests.model_layers.tiny_gguf import tokenizer_metadata

TEXTS = [
    "  7 8",
    "\n            1",
    "½",
    "Hello, world! It's 2026.",
    "x  =\t3.14\n\n",
    "naïve 日本語 🙂",
    "<|im_end|>",
]


@pytest.fixture(scope="module")
def smollm() -> Path:
    if not embedded.EMBEDDED.is_ready():
        pytest.skip("the embedded model is not fetched (learnvllm models pull)")
    return embedded.EMBEDDED.path


@pytest.fixture(scope="module")
def tokenizer(smollm: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm / "tokenizer.json"))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("  7 8", ["  ", "7", " ", "8"]),
        ("2026", ["2", "0", "2", "6"]),
        ("½", ["½"]),
        ("\n            1", ["\n            ", "1"]),
    ],
)
def test_digits_are_cut_off_before_bytes_are_merged(
    text: str, pieces: list[str], tokenizer: Tokenizer
) -> None:
    encoding = tokenizer.encode(text)
    assert [text[a:b] for a, b in _distinct(encoding.offsets)] == pieces


def _distinct(offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Bytes of one character share its offsets."""
    return list(dict.fromkeys(offsets))


@given(
    text=st.text(st.characters(codec="utf-8", max_codepoint=0x3FFFF, categories=["L", "N", "P", "S", "Z"]))
)
def test_text_survives_the_way_there_and_back(text: str, tokenizer: Tokenizer) -> None:
    """But for some control characters and rare planes: the vocabulary has no token for their bytes."""
    missing = {c for c in pre_tokenizers.ByteLevel.alphabet() if tokenizer.token_to_id(c) is None}
    as_bytes = "".join(
        piece for piece, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    )
    assume(not missing & set(as_bytes))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_no_bos_is_added_and_end_of_turn_is_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hi<|im_end|>").ids[-1] == 2
    assert len(tokenizer.encode("Hi").ids) == 1
    assert tokenizer.decode([2]) == ""


def test_transformers_cuts_the_same_and_renders_the_same_chat(smollm: Path, tokenizer: Tokenizer) -> None:
    import json

    import jinja2.sandbox
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == tokenizer.encode(text).ids
    messages = [{"role": "user", "content": "Hi"}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    template = json.loads((smollm / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    ours = environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    assert ours == rendered
    assert ours == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return tokenizer_metadata("gpt-2")


def pieces_of(metadata: dict[str, Any], text: str, pre: str) -> list[str]:
    """What the pre-tokenizer alone makes of a text."""
    tokenizer, _ = convert_tokenizer(metadata | {"tokenizer.ggml.pre": pre})
    assert tokenizer.pre_tokenizer is not None
    return [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'ll", " pay", " 12345", "$!", "\n\n", " ok"]),
        ("smollm", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", "$!", "\n\n", " ok"]),
        ("llama-bpe", ["I", "'ll", " pay", " ", "123", "45", "$!\n\n", " ok"]),
        ("qwen2", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", "$!\n\n", " ok"]),
    ],
)
def test_each_named_rule_cuts_in_its_own_way(pre: str, pieces: list[str], metadata: dict[str, Any]) -> None:
    assert pieces_of(metadata, "I'll pay 12345$!\n\n ok", pre) == pieces


def test_bos_is_put_in_front_where_the_file_says_so(metadata: dict[str, Any]) -> None:
    plain, config = convert_tokenizer(metadata)
    with_bos, config_bos = convert_tokenizer(metadata | {"tokenizer.ggml.add_bos_token": True})
    ids = plain.encode("hello").ids
    assert with_bos.encode("hello").ids == [1, *ids]
    assert with_bos.encode("hello", add_special_tokens=False).ids == ids
    assert (config["add_bos_token"], config_bos["add_bos_token"]) == (False, True)


SPM_PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    "<0x0A>",
    "<0xE2>",
    "<0x82>",
    "<0xAC>",
    "▁",
    "a",
    "b",
    "ab",
    "▁a",
    "▁ab",
    "ba",
]


def sentencepiece(prefix: bool) -> dict[str, Any]:
    """Scores make "ab" win over "▁a" and "ba"."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": SPM_PIECES,
        "tokenizer.ggml.scores": [0.0] * 10 + [-1.0, -2.0, -3.0, -4.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 6, 6, 6, 6] + [1] * 7,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer, _ = convert_tokenizer(sentencepiece(prefix=False))

    def pieces(text: str) -> list[str]:
        return tokenizer.encode(text, add_special_tokens=False).tokens

    assert pieces("abab") == ["ab", "ab"]
    assert pieces("a ab") == ["a", "▁ab"]
    assert pieces("\n€") == ["<0x0A>", "<0xE2>", "<0x82>", "<0xAC>"]
    assert tokenizer.encode("a").ids[0] == 1  # SentencePiece models begin with BOS
    for text in ("abab", "a ab", "\n€", " a"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_space_that_sentencepiece_puts_in_front_is_taken_off_again() -> None:
    tokenizer, _ = convert_tokenizer(sentencepiece(prefix=True))
    assert tokenizer.encode("ab", add_special_tokens=False).tokens == ["▁ab"]
    assert tokenizer.decode(tokenizer.encode("ab").ids) == "ab"


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
@pytest.mark.parametrize("wrong", [None, 7, "x", [], [7]])
def test_damaged_metadata_are_an_error_with_a_name(metadata: dict[str, Any], kind: str, wrong: Any) -> None:
    """Each value in turn is missing or something else."""
    whole = metadata if kind == "bytes" else sentencepiece(prefix=True)
    refused = 0
    for name in (name for name in whole if name.startswith("tokenizer.")):
        rest = {key: value for key, value in whole.items() if key != name}
        try:
            convert_tokenizer(rest if wrong is None else rest | {name: wrong})
        except ModelLoadError:
            refused += 1
    assert refused >= 2


def test_transformers_computes_the_same_logits_from_the_converted_model(smollm: Path) -> None:
    from transformers import AutoModelForCausalLM

    from tests.model_layers.paged_driver import PagedDriver, reference_logits
    from tests.model_layers.test_models import load_exact

    tokens = Tokenizer.from_file(str(smollm / "tokenizer.json")).encode("The capital of France is").ids
    expected = reference_logits(
        AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32).eval(), tokens
    )
    ours = PagedDriver(load_exact(smollm), block_size=16, num_blocks=8).step({"a": tokens})["a"]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-3)
    assert ours[-1].argmax() == expected[-1].argmax()
