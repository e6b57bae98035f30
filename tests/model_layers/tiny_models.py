"""Tiny random models of every architecture, saved as directories that transformers and the engine both load.

    directory, hf_model = make_tiny_model("llama", tmp_path)
    directory, hf_model = make_tiny_model("qwen2", tmp_path, num_hidden_layers=3, use_sliding_window=True)

Weights are seeded and large enough that the best logit stands clear of the second, so that greedy tokens can
be compared. Each directory also holds a byte-level tokenizer (any text round-trips) and a ChatML chat
template.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 320
EOS_TEXT, BOS_TEXT, PAD_TEXT = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
SPECIAL_TOKENS = (PAD_TEXT, BOS_TEXT, EOS_TEXT)  # ids 0, 1, 2
EOS_ID = 2

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS_ID,
    "tie_word_embeddings": False,
}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "qwen3_moe": {
        "head_dim": 24,
        "num_hidden_layers": 3,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "gemma3": {
        "head_dim": 32,
        "num_hidden_layers": 4,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 24,
        "tie_word_embeddings": True,
    },
}
KINDS = tuple(_OWN)


def make_tiny_model(kind: str, tmp_path: Path, seed: int = 0, **overrides: Any) -> tuple[Path, Any]:
    """Create, save and return (directory, transformers model in eval mode, fp32).

    kind: llama, qwen2, qwen3, qwen3_moe or gemma3. `overrides` go to the transformers config.
    The directory is `tmp_path/tiny-<kind>`; it is overwritten if it exists.
    """
    from transformers import AutoModelForCausalLM

    config = make_tiny_config(kind, **overrides)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random_weight(name, parameter.shape, config))
    model.generation_config.eos_token_id = EOS_ID
    directory = tmp_path / f"tiny-{kind}"
    model.save_pretrained(directory)
    save_tiny_tokenizer(directory)
    return directory, model


def make_tiny_config(kind: str, **overrides: Any) -> Any:
    from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

    configs = {
        "llama": LlamaConfig,
        "qwen2": Qwen2Config,
        "qwen3": Qwen3Config,
        "qwen3_moe": Qwen3MoeConfig,
        "gemma3": Gemma3TextConfig,
    }
    return configs[kind](**{**_COMMON, **_OWN[kind], **overrides})


def _random_weight(name: str, shape: torch.Size, config: Any) -> torch.Tensor:
    """Normal values of a size that keeps every part of the model audible in the logits.

    A tied model repeats its last token when the embedding drowns the sublayers in the residual stream: there
    the embedding is small, and the final norm makes up for it.
    """
    noise = torch.randn(shape)
    gemma, tied = config.model_type == "gemma3_text", config.tie_word_embeddings
    if name.endswith("bias"):
        return noise * 0.3
    if "norm" in name:
        size = (12.0 if gemma else 6.0) if tied and name == "model.norm.weight" else 1.0
        return noise * 0.2 + size - (1.0 if gemma else 0.0)
    if "embed_tokens" in name:
        return noise * (0.4 if not tied else 0.03 if gemma else 0.06)
    if "lm_head" in name:
        return noise * (4 / shape[1] ** 0.5)
    return noise * (2 / shape[-1] ** 0.5)


def save_tiny_tokenizer(directory: Path) -> None:
    """A byte-level BPE tokenizer: ids 0-2 special, 3-258 bytes, then some merged pieces up to VOCAB_SIZE."""
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TEXT,
        "bos_token": BOS_TEXT,
        "pad_token": PAD_TEXT,
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


_MERGED_WORDS = (
    "Ġthe Ġand Ġof Ġto Ġin ing ion er on an Ġa Ġis hello Ġworld Ġpaged Ġattention Ġblocks Ġtokens Ġcache "
    "user system assistant"
)


def tiny_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate((*SPECIAL_TOKENS, *alphabet))}
    merges: list[tuple[str, str]] = []
    for word in _MERGED_WORDS.split():
        piece = word[0]
        for letter in word[1:]:
            if piece + letter not in vocab and len(vocab) < VOCAB_SIZE:
                vocab[piece + letter] = len(vocab)
                merges.append((piece, letter))
            piece += letter
    assert len(vocab) == VOCAB_SIZE  # every id the model can sample has a text
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer
