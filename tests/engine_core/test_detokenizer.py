"""Incremental detokenization: the pieces make the whole, no half characters, stop strings exactly cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.detokenizer import (
    IncrementalDetokenizer,
    TokenStream,
    find_stop_string,
    make_detokenizer,
    undecided_length,
)
from tests.engine_core.parts import byte_fallback_tokenizer, byte_level_tokenizer

BYTE_LEVEL, BYTE_FALLBACK = byte_level_tokenizer(), byte_fallback_tokenizer()
TOKENIZERS = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["bytes", "fallback"])


def run(tokenizer, token_ids, params=None, prompt=(), finish=True):
    """Push tokens one by one as OutputProcessor does; returns (deltas, stop string, detokenizer)."""
    detokenizer = IncrementalDetokenizer(tokenizer, list(prompt), params or SamplingParams())
    deltas, stop = [], None
    for token_id in token_ids:
        stop = detokenizer.update([token_id], stop_terminated=False)
        deltas.append(detokenizer.next_text(finished=stop is not None, delta=True))
        if stop is not None:
            break
    if stop is None and finish:
        stop = detokenizer.finish()
        deltas.append(detokenizer.next_text(finished=True, delta=True))
    return deltas, stop, detokenizer


@TOKENIZERS
@given(text=st.text(max_size=30), prompt=st.text(max_size=8))
def test_the_pieces_of_any_text_make_that_text(tokenizer, text, prompt) -> None:
    prompt_ids = tokenizer.encode(prompt + "a", add_special_tokens=False)
    ids = tokenizer.encode("a" + text, add_special_tokens=False)[1:]
    deltas, _, detokenizer = run(tokenizer, ids, prompt=prompt_ids)
    expected = tokenizer.decode(prompt_ids + ids).removeprefix(tokenizer.decode(prompt_ids))
    assert "".join(deltas) == detokenizer.text == expected


@given(ids=st.lists(st.integers(3, 299), max_size=25))
def test_any_tokens_at_all_decode_to_what_decoding_them_at_once_gives(ids) -> None:
    """Invalid UTF-8 included: bytes that never become a character come out as the replacement character."""
    ids = [i for i in ids if i < BYTE_LEVEL.vocab_size]
    deltas, _, _ = run(BYTE_LEVEL, ids)
    assert "".join(deltas) == BYTE_LEVEL.decode(ids)


@given(ids=st.lists(st.integers(3 + 0x80, 267), max_size=25))
def test_invalid_bytes_never_swallow_the_words_around_them(ids) -> None:
    """Byte fallback calls a whole run of bytes invalid when its last byte is, after its first were streamed;
    so only the words (here: all that is ASCII) must agree with decoding at once."""
    deltas, _, _ = run(BYTE_FALLBACK, ids, prompt=BYTE_FALLBACK.encode("a"))
    whole = BYTE_FALLBACK.decode(BYTE_FALLBACK.encode("a") + ids).removeprefix("a")
    assert ascii_only("".join(deltas)) == ascii_only(whole)


def ascii_only(text: str) -> str:
    return "".join(c for c in text if c < "\x80")


@TOKENIZERS
def test_half_a_character_is_never_shown(tokenizer) -> None:
    prompt = tokenizer.encode("a", add_special_tokens=False)
    ids = tokenizer.encode("a日🎉b", add_special_tokens=False)[len(prompt) :]
    deltas, _, _ = run(tokenizer, ids, prompt=prompt)
    assert "".join(deltas) == "日🎉b"
    assert all("\ufffd" not in delta for delta in deltas)
    assert [delta for delta in deltas if delta] == ["日", "🎉", "b"]


@TOKENIZERS
def test_an_unfinished_character_at_the_end_is_flushed(tokenizer) -> None:
    ids = tokenizer.encode("b日", add_special_tokens=False)[:-1]
    deltas, _, _ = run(tokenizer, ids, prompt=tokenizer.encode("a"))
    assert "".join(deltas).lstrip().startswith("b\ufffd")
    assert deltas[-3:-1] == ["", ""]
    assert "\ufffd" in deltas[-1]


def test_a_character_begun_in_the_prompt_is_completed_in_the_output() -> None:
    first, *rest = BYTE_LEVEL.encode("日", add_special_tokens=False)
    deltas, _, _ = run(
        BYTE_LEVEL, [*rest, *BYTE_LEVEL.encode("bcd")], prompt=[*BYTE_LEVEL.encode("a"), first]
    )
    assert "".join(deltas) == "日bcd"


def test_the_leading_space_of_a_word_survives_after_a_prompt() -> None:
    ids = BYTE_FALLBACK.encode("hello the world", add_special_tokens=False)
    stream = TokenStream(BYTE_FALLBACK, ids[:-2], skip_special_tokens=True)
    assert stream.push(ids[-2]) + stream.push(ids[-1]) == " the world"


def test_special_tokens_are_skipped_or_shown() -> None:
    ids = [*BYTE_LEVEL.encode("a"), 2, *BYTE_LEVEL.encode("b")]
    assert "".join(run(BYTE_LEVEL, ids)[0]) == "ab"
    shown = SamplingParams(skip_special_tokens=False)
    assert "".join(run(BYTE_LEVEL, ids, shown)[0]) == "a<|im_end|>b"


# --------------------------------------------------------------------------------------------- stop strings


def letters(text: str) -> list[int]:
    return [BYTE_LEVEL.encode(letter, add_special_tokens=False)[0] for letter in text]


def test_fault_46_no_piece_of_a_stop_string_is_ever_streamed() -> None:
    deltas, stop, detokenizer = run(BYTE_LEVEL, letters("ab<en<end>cd"), SamplingParams(stop=["<end>"]))
    assert stop == "<end>"
    assert "".join(deltas) == detokenizer.text == "ab<en"
    for i in range(len(deltas)):
        assert "ab<en<end>".startswith("".join(deltas[: i + 1]))
    assert deltas[:5] == ["a", "b", "", "", ""]  # held back while it could become the stop string
    assert deltas[5] == "<en"  # and given out as soon as it cannot


def test_fault_46_the_leftmost_match_counts() -> None:
    ids = BYTE_LEVEL.encode("Answer", add_special_tokens=False) + letters("\n\n")
    _, stop, detokenizer = run(BYTE_LEVEL, ids, SamplingParams(stop=["\n"]))
    assert (stop, detokenizer.text) == ("\n", "Answer")
    match = find_stop_string("Answer\n\n", ["\n\n", "r\n", "\n"], 0, include=False)
    assert match == ("r\n", 5)
    match = find_stop_string("Answer\n\n", ["\n\n", "\n"], 0, include=False)
    assert match == ("\n", 6)


def test_fault_46_ids_keep_the_token_that_completed_the_stop_string() -> None:
    ids = letters("abSTOPcd")
    _, _, detokenizer = run(BYTE_LEVEL, ids, SamplingParams(stop=["STOP"]))
    assert detokenizer.token_ids == ids[:6]
    assert detokenizer.text == "ab"


def test_tokens_after_the_stop_string_are_dropped_when_several_come_at_once() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], SamplingParams(stop=["c"]))
    assert detokenizer.update(letters("abcde"), stop_terminated=False) == "c"
    assert (detokenizer.text, detokenizer.token_ids) == ("ab", letters("abc"))


def test_the_stop_string_stays_when_asked_for() -> None:
    params = SamplingParams(stop=["<end>"], include_stop_str_in_output=True)
    deltas, stop, _ = run(BYTE_LEVEL, letters("ab<end>cd"), params)
    assert (stop, "".join(deltas)) == ("<end>", "ab<end>")


def test_a_stop_string_inside_one_token_cuts_that_token() -> None:
    deltas, stop, _ = run(BYTE_LEVEL, BYTE_LEVEL.encode("hello world"), SamplingParams(stop=["ll"]))
    assert (stop, "".join(deltas)) == ("ll", "he")


def test_stop_strings_must_end_after_min_tokens() -> None:
    params = SamplingParams(stop=["b"], min_tokens=3)
    _, stop, detokenizer = run(BYTE_LEVEL, letters("abcdbe"), params)
    assert (stop, detokenizer.text) == ("b", "abcd")
    straddling = SamplingParams(stop=["cd"], min_tokens=3)
    assert run(BYTE_LEVEL, letters("abcde"), straddling)[2].text == "ab"


def test_a_stop_token_has_no_text_but_keeps_its_id() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], SamplingParams(stop_token_ids=letters(".")))
    detokenizer.update(letters("ab."), stop_terminated=True)
    assert (detokenizer.text, detokenizer.token_ids) == ("ab", letters("ab."))
    kept = IncrementalDetokenizer(BYTE_LEVEL, [], SamplingParams(include_stop_str_in_output=True))
    kept.update(letters("ab."), stop_terminated=True)
    assert kept.text == "ab."


def test_a_stop_string_of_the_replacement_character_is_found_in_the_flush() -> None:
    ids = BYTE_LEVEL.encode("a日")[:-1]
    _, stop, detokenizer = run(BYTE_LEVEL, ids, SamplingParams(stop=["\ufffd"]))
    assert (stop, detokenizer.text) == ("\ufffd", "a")


ALPHABET = st.text(alphabet="ab", min_size=1, max_size=4)


@given(
    text=st.text(alphabet="abc", max_size=12),
    stops=st.lists(ALPHABET, min_size=1, max_size=3),
    data=st.data(),
)
def test_what_is_streamed_is_the_text_before_the_first_stop_string(text, stops, data) -> None:
    """Against a plain model: extend the text letter by letter, cut at the first leftmost match."""
    include = data.draw(st.booleans())
    params = SamplingParams(stop=stops, include_stop_str_in_output=include)
    deltas, stop, _ = run(BYTE_LEVEL, letters(text), params)
    expected, expected_stop = text, None
    for end in range(1, len(text) + 1):
        found = [(text[:end].find(s), len(s), s) for s in stops if s in text[:end]]
        if found:
            at, length, expected_stop = min(found)
            expected = text[: at + length if include else at]
            break
    assert ("".join(deltas), stop) == (expected, expected_stop)


@given(text=st.text(alphabet="ab", max_size=8), stops=st.lists(ALPHABET, max_size=3))
def test_as_little_as_possible_is_held_back(text, stops) -> None:
    held = undecided_length(text, stops)
    could_become = [n for n in range(1, len(text) + 1) for s in stops if n < len(s) and text.endswith(s[:n])]
    assert held == max(could_become, default=0)


def test_without_detokenizing_there_are_tokens_only() -> None:
    detokenizer = make_detokenizer(BYTE_LEVEL, [], SamplingParams(detokenize=False))
    assert detokenizer.update([5, 6], stop_terminated=False) is None
    assert (detokenizer.token_ids, detokenizer.text, detokenizer.next_text(True, True)) == ([5, 6], "", "")
