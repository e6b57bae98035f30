"""A thin wrapper on the `tokenizers` library: one model directory's text <-> token ids, and nothing more.

Only the front end has one; the engine core never sees text. Upstream namesake: vllm/tokenizers/hf.py
(there over transformers, which this project does not need at run time).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.json_fields import read_json

REPLACEMENT = "\ufffd"
"""What decoding makes of bytes that are not (yet) UTF-8."""


class Tokenizer:
    """Encodes and decodes as the model's tokenizer.json says.

    Args:
        backend: the `tokenizers.Tokenizer`.
        config: the content of tokenizer_config.json, for special tokens and the chat template.
        chat_template: overrides the one in `config`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> None:
        config = config or {}
        self.backend = backend
        self.bos_token = _token_text(config.get("bos_token"))
        self.eos_token = _token_text(config.get("eos_token"))
        self.chat_template = chat_template or _default_template(config.get("chat_template"))
        self.special_tokens: dict[str, str] = {
            key: text for key in config if key.endswith("_token") and (text := _token_text(config[key]))
        }
        """bos_token, eos_token, ... as chat templates name them."""
        self.all_special_ids = frozenset(
            id for id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._anchor, self._anchor_text = self._find_anchor()
        self._token_texts: dict[int, str] = {}

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json and chat_template.jinja of a model directory.

        Raises:
            ModelLoadError: tokenizer.json is missing, or one of them is unreadable.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise ModelLoadError(
                f"{path} has no tokenizer.json. Only fast tokenizers are supported: save one with "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...).",
                parameter="model",
                value=str(path),
            )
        config_file, template_file = path / "tokenizer_config.json", path / "chat_template.jinja"
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
            backend.no_truncation()
            backend.no_padding()
            config = read_json(config_file).values if config_file.is_file() else {}
            template = template_file.read_text(encoding="utf-8") if template_file.is_file() else None
            return cls(backend, config, template)
        except ModelLoadError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(
                f"The tokenizer in {path} cannot be read: {error}.", parameter="model", value=str(path)
            ) from None

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to this (exclusive), added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self.token_to_id(self.eos_token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. `add_special_tokens`: what the tokenizer puts around a prompt (BOS ...)."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_to_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling (`Ġthe`), None for an id it does not have."""
        return self.backend.id_to_token(token_id)

    def token_text(self, token_id: int) -> str:
        """The text one token stands for inside a sentence, special tokens included; for logprobs."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self.decode([*self._anchor, token_id], skip_special_tokens=False)
            text = text.removeprefix(self._anchor_text)
            self._token_texts[token_id] = text
        return text

    def _find_anchor(self) -> tuple[list[int], str]:
        """A token to put before another: decoded alone, a token may lose its leading space."""
        ids = self.encode("a", add_special_tokens=False)[-1:]
        return ids, self.decode(ids, skip_special_tokens=False)


def _token_text(token: Any) -> str | None:
    """tokenizer_config.json writes a special token as its text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _default_template(template: Any) -> str | None:
    """A string, or a list of named templates."""
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None
