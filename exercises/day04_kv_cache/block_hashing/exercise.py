"""A name for what a block holds (fill-in, 35 minutes, 15 points).

Two requests share a block when its name says that they would compute the same KV. That depends on every token
before it, and on more than tokens: a tenant's salt, an adapter, an image. You write the hash, and the
function with which a request extends its chain of names. What the name leaves out, one user reads of another.

Not asked: Which bytes you choose: any encoding counts in which different inputs give different bytes. The
root of the chain is given.

Read: docs/topics/kv_cache/concepts.md
Check: learnvllm check kv_cache.block_hashing
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from learnvllm.architecture.request import BlockHasher, Request
from learnvllm.kv_cache.hashing import (
    _NO_HASHES,
    DEFAULT_EXTRA_KEYS,
    BlockHash,
    ExtraKey,
    ExtraKeySource,
    none_hash,
)


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
    # TODO: 32 bytes that depend on the parent, on every token and on every extra key, and on where one ends
    # and the next begins.
    raise NotImplementedError("TODO: hash_block_tokens")


def _encode(value: str | int | bytes) -> bytes:
    """One type letter, the length, the bytes: "1", 1 and b"1" stay three different values."""
    # TODO: Yours to keep or to drop: bytes of one value, from which its type and its end can be told.
    raise NotImplementedError("TODO: _encode")


def cache_salt_key(request: Request, start: int, end: int) -> ExtraKey | None:
    """Requests share KV only under the same salt. In the first block is enough: later blocks chain to it."""
    # TODO: The salt is an extra key of the first block of a request that has one (an empty salt is a salt).
    raise NotImplementedError("TODO: cache_salt_key")


def make_block_hasher(
    block_size: int,
    seed: str | None = None,
    extra_key_sources: Sequence[ExtraKeySource] = DEFAULT_EXTRA_KEYS,
) -> BlockHasher:
    """Return the function with which a Request extends its `block_hashes` whenever it knows more tokens.

    It hashes only full blocks that are not hashed yet, so a growing request pays for each token once.
    """
    # TODO: Return a function of a request: the names of its full blocks beyond those in request.block_hashes.
    # The first block's parent is none_hash(seed), asked for once; each block's extra keys come from the
    # sources, in order.
    raise NotImplementedError("TODO: make_block_hasher")
