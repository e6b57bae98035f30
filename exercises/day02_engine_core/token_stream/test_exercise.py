"""Grader of engine_core.token_stream: whatever the tokens, the pieces make what decoding them at once
makes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.day02 import byte_fallback_tokenizer, byte_level_tokenizer, lesson

from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
TokenStream = subject.TokenStream

BYTES, FALLBACK = byte_level_tokenizer(), byte_fallback_tokenizer()
TOKENIZERS = pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["byte-level", "byte-fallback"])
READ = "text-out-of-tokens"


def pieces(tokenizer, token_ids, prompt=(), skip_special=True) -> list[str]:
    """What each push returned, then what flush returned."""
    stream = TokenStream(tokenizer, list(prompt), skip_special)
    return [*(stream.push(token_id) for token_id in token_ids), stream.flush()]


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.points(2)
@TOKENIZERS
@given(text=st.text(max_size=20), prompt=st.text(max_size=6))
@example(text=" the world", prompt="")
@example(text="日🎉b", prompt="")
def test_the_pieces_make_the_whole(tokenizer, text, prompt) -> None:
    prompt_ids = ids_of(tokenizer, prompt + "a")
    token_ids = ids_of(tokenizer, "a" + text)[len(ids_of(tokenizer, "a")) :]
    expected = tokenizer.decode(prompt_ids + token_ids).removeprefix(tokenizer.decode(prompt_ids))
    got = "".join(pieces(tokenizer, token_ids, prompt_ids))
    assert got == expected, lesson(
        "The pieces, put together, are what decoding prompt and output at once gives after the prompt.",
        case=f"text {text!r} after the prompt {prompt + 'a'!r}, {len(token_ids)} tokens",
        expected=repr(expected),
        got=repr(got),
        read=READ,
    )


@pytest.mark.points(2)
@TOKENIZERS
def test_half_a_character_is_never_shown(tokenizer) -> None:
    prompt = ids_of(tokenizer, "a")
    got = [p for p in pieces(tokenizer, ids_of(tokenizer, "a日🎉b")[len(prompt) :], prompt) if p]
    assert got == ["日", "🎉", "b"], lesson(
        "Bytes are held back until they are a character, then given out at once.",
        case="日🎉b, whose first two characters are several tokens each",
        expected=["日", "🎉", "b"],
        got=got,
        read=READ,
    )


@pytest.mark.points(1)
@TOKENIZERS
def test_what_is_certain_is_not_held_back(tokenizer) -> None:
    prompt = ids_of(tokenizer, "a")
    got = pieces(tokenizer, ids_of(tokenizer, "abba")[len(prompt) :], prompt)
    assert got == ["b", "b", "a", ""], lesson(
        "A token that ends on a whole character is text at once: a reader should not wait for the next one.",
        case="the letters b, b, a, one token each",
        expected=["b", "b", "a", ""],
        got=got,
        read=READ,
    )


@pytest.mark.points(1)
@TOKENIZERS
def test_the_space_before_a_word_survives(tokenizer) -> None:
    prompt, token_ids = ids_of(tokenizer, "hello"), ids_of(tokenizer, "hello the world")
    got = "".join(pieces(tokenizer, token_ids[len(prompt) :], prompt))
    assert got == " the world", lesson(
        "The first output token is spelled as what follows the prompt, not as the beginning of a text.",
        case='" the world" after "hello"',
        expected=repr(" the world"),
        got=repr(got),
        read=READ,
    )


@pytest.mark.points(1)
@TOKENIZERS
def test_an_unfinished_character_comes_out_of_the_flush(tokenizer) -> None:
    prompt = ids_of(tokenizer, "a")
    got = pieces(tokenizer, ids_of(tokenizer, "ab日")[len(prompt) : -1], prompt)
    certain = (got[0], [p for p in got[1:-1] if p], bool(got[-1]), set(got[-1]) <= {"\ufffd"})
    assert certain == ("b", [], True, True), lesson(
        "A request that ends inside a character gives its last bytes out as the replacement character.",
        case="b, then the first bytes of 日, then the end",
        expected="'b', nothing, ..., then one or more \ufffd from flush()",
        got=got,
        read=READ,
    )
    stream = TokenStream(tokenizer, prompt, True)
    stream.push(ids_of(tokenizer, "ab")[-1])
    again = (stream.flush(), stream.flush())
    assert again == ("", ""), lesson(
        "flush() has nothing to give when all text has been given out.",
        expected=("", ""),
        got=again,
        read=READ,
    )


@pytest.mark.points(1)
def test_a_character_begun_in_the_prompt_is_completed() -> None:
    first, *rest = ids_of(BYTES, "日")
    got = "".join(pieces(BYTES, [*rest, *ids_of(BYTES, "bcd")], [*ids_of(BYTES, "a"), first]))
    assert got == "日bcd", lesson(
        "A prompt may end inside a character. The output completes it, whole.",
        case="the prompt ends with the first byte of 日",
        expected="日bcd",
        got=got,
        read=READ,
    )
    got = pieces(BYTES, ids_of(BYTES, "bcd"), [*ids_of(BYTES, "a"), first])
    assert got == ["b", "c", "d", ""], lesson(
        "A character that is never completed holds nothing back: what comes after it is text at once.",
        case="the prompt ends with the first byte of 日, and b, c, d follow",
        expected=["b", "c", "d", ""],
        got=got,
        read=READ,
    )


@pytest.mark.points(2)
@given(token_ids=st.lists(st.integers(3, BYTES.vocab_size - 1), max_size=20))
def test_any_bytes_at_all_are_survived(token_ids) -> None:
    got = "".join(pieces(BYTES, token_ids))
    assert got == BYTES.decode(token_ids), lesson(
        "Tokens that are not UTF-8 are decoded as decoding them at once would.",
        case=f"tokens {token_ids}",
        expected=repr(BYTES.decode(token_ids)),
        got=repr(got),
        read=READ,
    )


@pytest.mark.points(1)
@given(token_ids=st.lists(st.integers(3 + 0x80, FALLBACK.vocab_size - 1), max_size=20))
@example(token_ids=[3 + 0xC3, 3 + 0xA9, 3 + 0xFF, *ids_of(FALLBACK, "hello the world")[-2:]])
def test_invalid_bytes_swallow_no_words(token_ids) -> None:
    """Byte fallback calls a run of bytes invalid when its last byte is, so how many replacement characters
    there are may differ; what is ASCII may not."""
    prompt = ids_of(FALLBACK, "a")
    got = ascii_only("".join(pieces(FALLBACK, token_ids, prompt)))
    expected = ascii_only(FALLBACK.decode(prompt + token_ids)[1:])
    assert got == expected, lesson(
        "Bytes that never become a character do not take the words around them away.",
        case=f"tokens {token_ids}",
        expected=repr(expected),
        got=repr(got),
        read=READ,
    )


@pytest.mark.points(1)
def test_an_error_that_it_cannot_mend_is_not_hidden(monkeypatch) -> None:
    """The library raises bare Exception, so the message must tell. Without the stream nothing is raised."""
    raised = []

    class FailingStream:
        def __init__(self, *args, **kwargs) -> None: ...

        def step(self, tokenizer, token_id) -> str:
            raised.append(token_id)
            raise Exception("the vocabulary is gone")

    monkeypatch.setattr("tokenizers.decoders.DecodeStream", FailingStream)
    monkeypatch.setattr(subject, "DecodeStream", FailingStream, raising=False)
    prompt, (token_id,) = ids_of(BYTES, "a"), ids_of(BYTES, "b")
    try:
        got = repr(TokenStream(BYTES, prompt, True).push(token_id))
    except Exception as error:
        got = str(error)
    assert not raised or got == "the vocabulary is gone", lesson(
        'Only an error that begins with "Invalid prefix" says that decoding changed text given out before. '
        "Any other is a fault that somebody must see: raise it again.",
        case='self._stream.step() raises Exception("the vocabulary is gone")',
        expected="push raises the same",
        got=f"push returned {got}" if got.startswith(("'", '"')) else f"push raised {got}",
        read=READ,
    )


@pytest.mark.points(1)
@pytest.mark.parametrize("skip", [True, False], ids=["skipped", "shown"])
def test_special_tokens_are_skipped_or_shown(skip) -> None:
    end = BYTES.eos_token_id
    got = "".join(pieces(BYTES, [*ids_of(BYTES, "a"), end, *ids_of(BYTES, "b")], skip_special=skip))
    expected = "ab" if skip else "a<|im_end|>b"
    assert got == expected, lesson(
        "skip_special_tokens decides whether special tokens have text.",
        case=f"a, <|im_end|>, b with skip_special_tokens={skip}",
        expected=expected,
        got=got,
        read=READ,
    )
    invalid, letter = [3 + 0xC3, 3 + 0xA9, 3 + 0xFF], ids_of(FALLBACK, "ab")[-1]
    token_ids = [*invalid, letter, FALLBACK.eos_token_id, letter]
    got = ascii_only("".join(pieces(FALLBACK, token_ids, ids_of(FALLBACK, "a"), skip_special=skip)))
    expected = "bb" if skip else "b</s>b"
    assert got == expected, lesson(
        "That holds for the new stream after a recovery as well.",
        case=f"bytes that are no UTF-8, then b, </s>, b with skip_special_tokens={skip}; the ASCII in it",
        expected=expected,
        got=got,
        read=READ,
    )


def ascii_only(text: str) -> str:
    return "".join(c for c in text if c < "\x80")
