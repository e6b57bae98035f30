"""Names of blocks: equal exactly when everything that the KV depends on is equal."""

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day04 import CONCEPTS

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.kv_cache.hashing import NONE_HASH
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
hash_block_tokens = subject.hash_block_tokens
cache_salt_key = subject.cache_salt_key
make_block_hasher = subject.make_block_hasher

READ = f"Read {CONCEPTS}#names."
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=5)
KEYS = st.lists(
    st.tuples(st.sampled_from(["lora", "image"]), st.sampled_from(["1", 1, b"1", "", -1])), max_size=2
)


def request(tokens, salt=None, hasher=None):
    return Request("r", list(tokens), SamplingParams(max_tokens=9), cache_salt=salt, block_hasher=hasher)


def typed(keys):
    return [(kind, type(value), value) for kind, value in keys]


def names(tokens, block_size=4, *, salt=None, seed=None, **options):
    sources = options.get("sources", (cache_salt_key,))
    return request(tokens, salt, make_block_hasher(block_size, seed, sources)).block_hashes


def all_differ(inputs, why):
    """No two of the inputs (parent, tokens, keys) may have one name."""
    seen = {}
    for parent, tokens, keys in inputs:
        name = hash_block_tokens(parent, tokens, keys)
        assert name not in seen, (
            f"tokens={tokens}, extra_keys={keys} and tokens={seen[name][0]}, extra_keys={seen[name][1]} have "
            f"one name. {why} Who shares a name shares KV. {READ}"
        )
        seen[name] = (tokens, keys)


@pytest.mark.points(1)
def test_a_name_has_32_bytes_and_is_the_same_every_time():
    name = hash_block_tokens(NONE_HASH, [1, 2, 3, 4])
    assert isinstance(name, bytes), f"A name is bytes, not {type(name).__name__}."
    assert len(name) == 32, f"SHA-256 gives 32 bytes, this name has {len(name)}."
    again = hash_block_tokens(NONE_HASH, (1, 2, 3, 4), [])
    assert again == name, (
        "Equal tokens without extra keys have one name, whether they come as a list or as a tuple, with None "
        f"or with no keys: expected {name.hex()[:12]}…, got {again.hex()[:12]}…."
    )
    hash_block_tokens(NONE_HASH, [0, 2**32 - 1])


@pytest.mark.points(1)
def test_another_process_gives_the_same_name():
    code = (
        "import importlib.util as u, sys; s = u.spec_from_file_location('x', sys.argv[1]); m = "
        "u.module_from_spec(s)\ns.loader.exec_module(m); print(m.hash_block_tokens(b'p' * 32, [1, 2], "
        "[('salt', 'x'), ('lora', 7)]).hex())"
    )
    here = hash_block_tokens(b"p" * 32, [1, 2], [("salt", "x"), ("lora", 7)]).hex()
    run = subprocess.run(
        [sys.executable, "-c", code, subject.__file__], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == here, (
        f"This process names the block {here[:12]}..., another one {run.stdout[:12]}... Processes that "
        "exchange KV "
        "must agree: no hash(), whose seed differs, and no address. " + READ
    )


@pytest.mark.points(1)
def test_everything_counts():
    base = (NONE_HASH, [1, 2, 3, 4], [("lora", "a")])
    all_differ(
        [
            base,
            (b"x" * 32, *base[1:]),
            (NONE_HASH, [1, 2, 3, 5], base[2]),
            (NONE_HASH, [2, 1, 3, 4], base[2]),
            (*base[:2], []),
            (*base[:2], [("lora", "b")]),
            (*base[:2], [("salt", "a")]),
            (*base[:2], [("lora", "a"), ("image", "a")]),
        ],
        "A name depends on the parent, the tokens in their order, and kind and value of every extra key.",
    )


@pytest.mark.points(2)
def test_where_one_thing_ends_and_the_next_begins_counts():
    tokens = [1, 2]
    as_tokens = struct.unpack("<5I", b"s" + struct.pack("<Q", 1) + b"k" + b"s" + struct.pack("<Q", 1) + b"v")
    all_differ(
        [
            (NONE_HASH, tokens, keys)
            for keys in (
                [],
                [("kind", "1")],
                [("kind", 1)],
                [("kind", b"1")],
                [("kin", "d1")],
                [("kind", "1"), ("kind", "1")],
                [("kind", "1kind1")],
                [("kind1", "")],
                [("kind", "x")],
                [("kind", "X")],
                [("kind", " x")],
                [("kind", "?")],
                [("kind", "\ud800")],  # JSON may bring half of a surrogate pair, which is no UTF-8
                [("kind", "\ud801")],
                [("a", "b"), ("c", "d")],
                [("a", "bscsd")],
            )
        ]
        + [(NONE_HASH, t, []) for t in ([], [0], [0, 0], [12, 3], [1, 23], [123], [256], [1, 0], [65536])]
        + [(NONE_HASH, [1, *as_tokens], []), (NONE_HASH, [1], [("k", "v")])],
        "Put a length or a fixed width before everything, and a mark for its type: then the bytes can be "
        "read in one way only.",
    )


@pytest.mark.points(2)
@given(TOKENS, KEYS, TOKENS, KEYS)
def test_names_are_equal_exactly_when_inputs_are(a, a_keys, b, b_keys):
    equal = hash_block_tokens(NONE_HASH, a, a_keys) == hash_block_tokens(NONE_HASH, b, b_keys)
    same = a == b and typed(a_keys) == typed(b_keys)
    assert equal == same, (
        f"({a}, {a_keys}) and ({b}, {b_keys}) are {'equal' if same else 'different'} inputs, their names are "
        f"{'equal' if equal else 'different'}. {READ}"
    )


@pytest.mark.points(1)
def test_the_builtin_hash_is_not_good_enough():
    """hash(-1) == hash(-2): collisions can be made on purpose (vLLM PR #15297)."""
    all_differ(
        [(NONE_HASH, [1], [("x", -1)]), (NONE_HASH, [1], [("x", -2)])],
        "Python's hash(-1) equals hash(-2); whoever can make a collision can read another's KV.",
    )


@pytest.mark.points(1)
@given(st.lists(st.integers(0, 9), max_size=14), st.integers(1, 5))
def test_only_full_blocks_have_names_and_each_is_chained_to_the_one_before(tokens, block_size):
    got = names(tokens, block_size)
    count = len(tokens) // block_size
    assert len(got) == count, (
        f"{len(tokens)} tokens fill {count} blocks of {block_size}, got {len(got)} names. The last, partial "
        "block still changes: naming it would promise KV of tokens nobody knows."
    )
    parent = NONE_HASH
    for index, name in enumerate(got):
        block = tokens[index * block_size : (index + 1) * block_size]
        assert name == hash_block_tokens(parent, block), (
            f"Block {index} of {tokens} ({block_size} a block) must be hash_block_tokens(name of block "
            f"{index - 1}, {block}). KV depends on every token before, so the name does. {READ}"
        )
        parent = name


@pytest.mark.points(2)
@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5))
def test_a_request_that_grows_has_the_names_of_one_that_came_whole(prompt, outputs):
    asked = []

    def source(request, start, end):
        asked.append((start, end))
        return ("mark", start) if start else None

    hasher = make_block_hasher(3, None, (cache_salt_key, source))
    growing = request(prompt, "salt", hasher)
    for tokens in outputs:
        growing.append_output_token_ids(list(tokens))
    spans = [(i, i + 3) for i in range(0, growing.num_tokens - 2, 3)]
    assert asked == spans, (
        f"Prompt {prompt}, then {outputs}, blocks of 3: every full block is to be hashed once, {spans}; the "
        f"extra-key source was asked about {asked}. A request hashes each token once, however it learns it."
    )
    whole = request(growing.all_token_ids, "salt", hasher)
    assert growing.block_hashes == whole.block_hashes, (
        f"Prompt {prompt}, then output {outputs}: names differ from those of the same tokens as one prompt. "
        f"Go on from the last name, not from the root; output counts as well as prompt. {READ}"
    )
    more = hasher(growing)
    assert more == [], f"A request without a new full block has no new names: expected [], got {len(more)}."


@pytest.mark.points(2)
def test_a_salt_keeps_tenants_apart_in_every_block():
    tokens = range(12)
    plain, salted, other = names(tokens), names(tokens, salt="a"), names(tokens, salt="b")
    for index in range(3):
        apart = len({plain[index], salted[index], other[index]})
        assert apart == 3, (
            f"No salt, salt 'a' and salt 'b' must give block {index} three names, they give {apart}: these "
            f"tenants would see from the time an answer takes what others asked. {READ}"
        )
    assert names(tokens, salt="a") == salted, "The same salt shares."
    assert names(tokens, salt="") != plain, "An empty salt is a salt: compare with None, not by truth."
    assert cache_salt_key(request(tokens, "a"), 4, 8) is None, (
        "The salt stands in the first block; later ones inherit it through the chain."
    )
    adapter = names(tokens, sources=(lambda request, start, end: ("lora", "a") if start == 0 else None,))
    assert adapter != salted, (
        "An adapter called 'a' is not the salt 'a' (vLLM #44701): the kind is part of the name."
    )


@pytest.mark.points(1)
def test_an_image_counts_from_its_block_on_and_every_source_is_asked():
    def image(content):
        return lambda request, start, end: ("image", content) if start <= 5 < end else None

    cat = names(range(12), salt="s", sources=(cache_salt_key, image("cat")))
    dog = names(range(12), salt="s", sources=(cache_salt_key, image("dog")))
    assert cat[0] == dog[0], "Before the image the KV is the same, so it can be shared."
    assert cat[1] != dog[1], (
        "Placeholder tokens of two images are equal: their content must be part of the name."
    )
    assert cat[2] != dog[2], "After the image every block depends on it."


@pytest.mark.points(1)
def test_a_seed_makes_a_family_of_names():
    assert names(range(4), seed="a") != names(range(4)), (
        "Seed 'a' and no seed gave the same names: a seed makes names of its own, so that nobody outside can "
        "compute them."
    )
    assert names(range(4), seed="a") == names(range(4), seed="a"), (
        "Seed 'a' gave other names the second time: processes with one seed must agree on them."
    )
    hasher = make_block_hasher(4, "random")
    assert request(range(4), hasher=hasher).block_hashes == request(range(4), hasher=hasher).block_hashes, (
        "With seed 'random' all requests of one hasher still share: ask none_hash(seed) once, not per "
        "request."
    )
