"""A block's hash names its whole prefix and all else its KV depends on, the same in every process."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.request import Request
from learnvllm.kv_cache.hashing import (
    DEFAULT_EXTRA_KEYS,
    NONE_HASH,
    ExtraKey,
    hash_block_tokens,
    make_block_hasher,
    none_hash,
)
from tests.kv_cache.helpers import make_request

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=6)
extra_keys = st.lists(
    st.tuples(st.text(max_size=3), st.one_of(st.text(max_size=3), st.integers(), st.binary(max_size=3))),
    max_size=2,
)


@given(tokens, extra_keys, tokens, extra_keys)
def test_fault_29_different_inputs_never_share_an_encoding(a, a_keys, b, b_keys) -> None:
    same_input = a == b and [(k, type(v), v) for k, v in a_keys] == [(k, type(v), v) for k, v in b_keys]
    same_hash = hash_block_tokens(NONE_HASH, a, a_keys) == hash_block_tokens(NONE_HASH, b, b_keys)
    assert same_hash == same_input


def test_fault_29_collisions_of_the_builtin_hash_do_not_collide_here() -> None:
    assert hash(-1) == hash(-2)  # so tuples of them collide too, in any number
    assert hash((-1, -1)) == hash((-2, -2))
    minus_one, minus_two = [("x", -1)], [("x", -2)]
    assert hash_block_tokens(NONE_HASH, [1], minus_one) != hash_block_tokens(NONE_HASH, [1], minus_two)
    assert len(hash_block_tokens(NONE_HASH, [1])) == 32


def test_values_of_different_type_or_kind_stay_apart() -> None:
    variants = [
        [],
        [("kind", "1")],
        [("kind", 1)],
        [("kind", b"1")],
        [("other", "1")],
        [("kind", "1"), ("kind", "1")],
        [("kin", "d1")],
    ]
    hashes = {hash_block_tokens(NONE_HASH, [1, 2], keys) for keys in variants}
    assert len(hashes) == len(variants)


def test_a_block_is_named_by_its_whole_prefix() -> None:
    a = make_request("a", [1, 2, 3, 4, 5, 6, 7, 8])
    b = make_request("b", [9, 2, 3, 4, 5, 6, 7, 8])
    assert a.block_hashes[1] != b.block_hashes[1]
    assert a.block_hashes[1] == hash_block_tokens(a.block_hashes[0], [5, 6, 7, 8])


def test_only_full_blocks_have_a_hash_and_output_counts_too() -> None:
    request = make_request("a", [1, 2, 3, 4, 5, 6, 7])
    assert len(request.block_hashes) == 1
    request.append_output_token_ids([8])
    assert request.block_hashes == make_request("b", [1, 2, 3, 4, 5, 6, 7, 8]).block_hashes


@pytest.mark.parametrize("block_size", [1, 8])
def test_fault_30_block_sizes_1_and_8(block_size: int) -> None:
    request = make_request("a", range(16), block_size)
    assert len(request.block_hashes) == 16 // block_size
    assert len(set(request.block_hashes)) == len(request.block_hashes)


def test_fault_28_a_salt_keeps_requests_apart_in_every_block() -> None:
    plain, salted = make_request("a", range(12)), make_request("b", range(12), cache_salt="tenant")
    other, same = (
        make_request("c", range(12), cache_salt="other"),
        make_request("d", range(12), cache_salt="tenant"),
    )
    for index in range(3):
        assert len({r.block_hashes[index] for r in (plain, salted, other)}) == 3
    assert salted.block_hashes == same.block_hashes
    empty = make_request("e", range(12), cache_salt="")
    assert empty.block_hashes != plain.block_hashes


def test_fault_28_an_adapter_named_like_a_salt_is_not_that_salt() -> None:
    def adapter_key(request: Request, start: int, end: int) -> ExtraKey | None:
        return ("lora", "tenant")

    adapted = make_block_hasher(4, extra_key_sources=(*DEFAULT_EXTRA_KEYS, adapter_key))
    plain = make_request("a", range(8))
    plain.block_hashes.clear()
    assert adapted(plain) != make_request("b", range(8), cache_salt="tenant").block_hashes


def test_fault_28_an_image_in_the_middle_changes_its_block_and_all_after_it() -> None:
    """Placeholder tokens of two images are the same; what tells their KV apart comes from a source."""

    def hasher_for(image: str):
        def image_key(request: Request, start: int, end: int) -> ExtraKey | None:
            return ("image", image) if start < 6 < end else None

        return make_block_hasher(4, extra_key_sources=(image_key,))

    request = make_request("a", range(12))
    request.block_hashes.clear()
    cat, dog = hasher_for("cat")(request), hasher_for("dog")(request)
    assert cat[0] == dog[0]
    assert cat[1] != dog[1]
    assert cat[2] != dog[2]


def _hash_in_another_process(seed: str | None, hash_seed: str) -> str:
    code = (
        "from learnvllm.kv_cache.hashing import hash_block_tokens, none_hash;"
        f"print(hash_block_tokens(none_hash({seed!r}), [1, 2, 3], [('cache_salt', 's')]).hex())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


def test_two_processes_agree_on_hashes_unless_seeded_apart() -> None:
    here = hash_block_tokens(none_hash(), [1, 2, 3], [("cache_salt", "s")]).hex()
    assert _hash_in_another_process(None, "1") == here
    seeded = hash_block_tokens(none_hash("cluster-a"), [1, 2, 3], [("cache_salt", "s")]).hex()
    assert _hash_in_another_process("cluster-a", "2") == seeded != here
    assert _hash_in_another_process("random", "3") not in (here, seeded)


def test_random_roots_differ_and_the_default_is_a_constant() -> None:
    assert none_hash("random") != none_hash("random")
    assert none_hash() == NONE_HASH
    assert none_hash("") != NONE_HASH
