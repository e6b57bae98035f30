"""Names for block contents: SHA-256 over the block before, the tokens, and whatever else the KV depends on.

KV of a token depends on every token before it, so a block's hash contains its predecessor's: equal hashes
mean equal prefixes. Upstream namesake: vllm/v1/core/kv_cache_utils.py (hash_block_tokens,
generate_block_hash_extra_keys).
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Callable, Sequence

from learnvllm.architecture.request import BlockHasher, Request

BlockHash = bytes
"""32 bytes."""

ExtraKey = tuple[str, str | int | bytes]
"""(kind, value): something besides tokens that the KV of a block depends on. The kind keeps an adapter called
"a" apart from a salt "a"."""

ExtraKeySource = Callable[[Request, int, int], ExtraKey | None]
"""(request, start, end) -> the extra key of the block of tokens [start, end), or None where it has none."""

RANDOM_SEED = "random"
_NONE_HASH_DOMAIN = b"learnvllm.kv_cache.none_hash"


def none_hash(seed: str | None = None) -> BlockHash:
    """The hash that stands before a request's first block.

    Without a seed it is a constant, so processes that never met agree on every block hash (KV can be shared
    or compared across them). Another seed gives another, separate family of hashes; "random" gives this
    process one of its own. Upstream: vllm/v1/core/kv_cache_utils.py (NONE_HASH, init_none_hash).
    """
    if seed is None:
        return hashlib.sha256(_NONE_HASH_DOMAIN).digest()
    if seed == RANDOM_SEED:
        seed = secrets.token_hex(32)
    return hashlib.sha256(_NONE_HASH_DOMAIN + b"\0" + seed.encode()).digest()


NONE_HASH = none_hash()


def hash_block_tokens(
    parent: BlockHash, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()
) -> BlockHash:
    """Hash one full block.

    The encoding is canonical: every part has a fixed width or its length in front, so two different inputs
    never give the same bytes. Python's own hash() would be quicker and is not safe: collisions in it can be
    made on purpose, and a collision here hands one user the KV of another.

    Args:
        parent: hash of the block before, or NONE_HASH.
        token_ids: the block's tokens, each in [0, 2**32).
        extra_keys: what else the KV depends on.
    """
    count = len(token_ids)
    digest = hashlib.sha256(parent)
    digest.update(struct.pack(f"<{count + 1}I", count, *token_ids))
    for kind, value in extra_keys:
        digest.update(_encode(kind))
        digest.update(_encode(value))
    return digest.digest()


def _encode(value: str | int | bytes) -> bytes:
    """One type letter, the length, the bytes: "1", 1 and b"1" stay three different values."""
    if isinstance(value, str):
        tag, data = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, int):
        tag, data = b"i", b"%d" % value
    else:
        tag, data = b"b", value
    return tag + struct.pack("<Q", len(data)) + data


def cache_salt_key(request: Request, start: int, end: int) -> ExtraKey | None:
    """Requests share KV only under the same salt. In the first block is enough: later blocks chain to it."""
    return ("cache_salt", request.cache_salt) if start == 0 and request.cache_salt is not None else None


DEFAULT_EXTRA_KEYS: tuple[ExtraKeySource, ...] = (cache_salt_key,)
"""Whatever else the KV will depend on (a LoRA adapter, the content of an image) adds its own source here."""


def make_block_hasher(
    block_size: int,
    seed: str | None = None,
    extra_key_sources: Sequence[ExtraKeySource] = DEFAULT_EXTRA_KEYS,
) -> BlockHasher:
    """Return the function with which a Request extends its `block_hashes` whenever it knows more tokens.

    It hashes only full blocks that are not hashed yet, so a growing request pays for each token once.
    """
    root = none_hash(seed)
    sources = tuple(extra_key_sources)

    def hash_new_blocks(request: Request) -> list[BlockHash]:
        first = len(request.block_hashes)
        last = len(request.all_token_ids) // block_size
        if first >= last:
            return _NO_HASHES
        parent = request.block_hashes[-1] if first else root
        new: list[BlockHash] = []
        for start in range(first * block_size, last * block_size, block_size):
            end = start + block_size
            extra = [key for source in sources if (key := source(request, start, end)) is not None]
            parent = hash_block_tokens(parent, request.all_token_ids[start:end], extra)
            new.append(parent)
        return new

    return hash_new_blocks


_NO_HASHES: list[BlockHash] = []
