"""A byte-level tokenizer with a few whole words and a chat template, made without torch or a file."""

from __future__ import annotations

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from learnvllm.engine_core.tokenizer import Tokenizer

SPECIAL = {
    "pad_token": "<|endoftext|>",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
}  # ids 0, 1, 2
EOS_ID = 2
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ bos_token + message['role'] + '\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token + 'assistant\\n' }}{% endif %}"
)
_WORDS = "Ġthe Ġworld Ġof Ġblocks Ġand Ġtokens hello user assistant system"


def fake_backend() -> Backend:
    """Ids 0-2 special, then the 256 bytes, then every beginning of a word that words are merged through."""
    vocab = {
        text: i for i, text in enumerate((*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())))
    }
    merges = []
    for word in _WORDS.split():
        for end in range(1, len(word)):
            if word[: end + 1] not in vocab:
                vocab[word[: end + 1]] = len(vocab)
                merges.append((word[:end], word[end]))
    backend = Backend(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL.values()))
    return backend


def fake_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    return Tokenizer(fake_backend(), {**SPECIAL, "chat_template": chat_template})
