"""From the vocabulary in a GGUF file to a `tokenizer.json` that the tokenizers library runs.

GGUF stores the pieces, their merges or scores, and only the *name* of the rule that cuts text before merging;
the rules themselves are here. A rule that is not here is refused: a tokenizer that is nearly right answers
nearly sensibly, and nobody notices. llama.cpp keeps the same list in src/llama-vocab.cpp.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from learnvllm.architecture.errors import ModelLoadError

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"


def convert_tokenizer(metadata: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Build the tokenizer and the contents of tokenizer_config.json from a GGUF file's metadata.

    Raises:
        ModelLoadError: the kind of tokenizer, or its pre-tokenizer, is not implemented, or a value is missing
            or nonsense.
    """
    try:
        return _convert(metadata)
    except ModelLoadError:
        raise
    except Exception as error:  # a list is missing or holds something else; the library raises bare Exception
        raise ModelLoadError(
            f"The GGUF file's tokenizer cannot be converted: {type(error).__name__}: {error}. Fetch the file "
            "again, or a directory with tokenizer.json and *.safetensors.",
            parameter="tokenizer.ggml.tokens",
        ) from error


def _convert(metadata: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level_bpe(metadata)
    elif kind == "llama":
        tokenizer = _sentencepiece_bpe(metadata)
    else:
        raise _unsupported("tokenizer.ggml.model", kind, "gpt2 (byte-level BPE), llama (SentencePiece BPE)")
    _add_special_tokens(tokenizer, metadata)
    return tokenizer, _tokenizer_config(metadata)


def _byte_level_bpe(metadata: dict[str, Any]) -> Tokenizer:
    """Text is cut by the named rule, turned into printable bytes, and merged within each piece."""
    vocab = _vocabulary(metadata)
    merges = [tuple(m.split(" ", 1)) for m in metadata["tokenizer.ggml.merges"]]
    pre = metadata.get("tokenizer.ggml.pre")
    split, whole_pieces = _pre_tokenizer(pre)
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=whole_pieces))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(pre: Any) -> tuple[pre_tokenizers.PreTokenizer, bool]:
    """The rule of this name, and whether a piece that is a token as it stands is taken without merging."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "gpt-2":
        return gpt2, False
    if pre == "smollm":  # digits one by one, and only then the rule of GPT-2
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]), False
    if pre in ("llama-bpe", "llama3", "llama-v3"):
        return _split_then_bytes(_LLAMA3), True
    if pre == "qwen2":
        return _split_then_bytes(_QWEN2), False
    raise _unsupported("tokenizer.ggml.pre", pre, "gpt-2, smollm, llama-bpe, qwen2")


def _split_then_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece_bpe(metadata: dict[str, Any]) -> Tokenizer:
    """Spaces become ▁, nothing is cut, and what has no piece falls back to bytes (<0x0A>).

    SentencePiece stores no merges but a score for each piece: of all neighbours that form a piece, the best
    scored is merged first. The same as a list of merges in the order of the scores of what they form.
    """
    vocab = _vocabulary(metadata)
    scores = metadata["tokenizer.ggml.scores"]
    unknown = metadata["tokenizer.ggml.tokens"][int(metadata.get("tokenizer.ggml.unknown_token_id", 0))]
    merges = merges_from_scores(vocab, scores)
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True, ignore_merges=False)
    )
    space = normalizers.Replace(" ", "▁")
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to form a piece of two others; best scored pieces first, then by the ids of the halves."""
    found: list[tuple[float, int, int, str, str]] = []
    for piece, token in vocab.items():
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                found.append((-scores[token], left, right, piece[:cut], piece[cut:]))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _vocabulary(metadata: dict[str, Any]) -> dict[str, int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    vocab = {text: i for i, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelLoadError(
            f"The GGUF vocabulary has {len(tokens) - len(vocab)} pieces twice; it cannot be converted.",
            parameter="tokenizer.ggml.tokens",
            value=len(tokens),
        )
    return vocab


def _add_special_tokens(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    """Control tokens never appear in decoded text; user-defined ones do, but are never cut either."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type", [])

    def of_kind(wanted: int) -> list[AddedToken]:
        return [
            AddedToken(text, special=wanted == CONTROL, normalized=False)
            for text, kind in zip(tokens, types)
            if kind == wanted
        ]

    tokenizer.add_special_tokens(of_kind(CONTROL))  # each call rebuilds a matcher: one call for all
    tokenizer.add_tokens(of_kind(USER_DEFINED))
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is not None and _adds_bos(metadata):
        text = tokens[bos]
        template = processors.TemplateProcessing(
            single=f"{text}:0 $A:0", pair=f"{text}:0 $A:0 {text}:1 $B:1", special_tokens=[(text, bos)]
        )
        byte_level = processors.ByteLevel(trim_offsets=False)
        is_bytes = metadata["tokenizer.ggml.model"] == "gpt2"
        tokenizer.post_processor = processors.Sequence([byte_level, template]) if is_bytes else template


def _adds_bos(metadata: dict[str, Any]) -> bool:
    """Whether a prompt begins with the BOS token; SentencePiece models do unless they say otherwise."""
    return bool(metadata.get("tokenizer.ggml.add_bos_token", metadata["tokenizer.ggml.model"] == "llama"))


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_bos(metadata),
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if token is not None and token < len(tokens):
            config[f"{ours}_token"] = tokens[token]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config


def _unsupported(field: str, value: Any, implemented: str) -> ModelLoadError:
    return ModelLoadError(
        f"{field}={value!r}: this tokenizer is not implemented, and a near miss would give wrong token ids. "
        f"Implemented: {implemented}. A directory with tokenizer.json and *.safetensors works for any.",
        parameter=field,
        value=value,
    )
