"""Grader of engine_core.stop_strings: against a plain model that extends a text letter by letter and cuts
it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.day02 import byte_level_tokenizer, lesson, letters

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
find_stop_string, undecided_length = subject.find_stop_string, subject.undecided_length
IncrementalDetokenizer = subject.IncrementalDetokenizer

TOKENIZER = byte_level_tokenizer()
READ = "stop-strings"
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3)


def ids(text: str) -> list[int]:
    return letters(TOKENIZER, text)


def stream(text: str, sizes: list[int] | None = None, **params):
    """Feed `text`, one token a letter, in steps of the given sizes; returns (deltas, stop string,
    detokenizer)."""
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], SamplingParams(**params))
    token_ids, deltas, stop, position = ids(text), [], None, 0
    sizes = list(sizes or [])
    while position < len(token_ids) and stop is None:
        size = sizes.pop(0) if sizes else 1
        stop = detokenizer.update(token_ids[position : position + size], stop_terminated=False)
        position += size
        deltas.append(detokenizer.next_text(finished=stop is not None, delta=True))
    if stop is None:
        stop = detokenizer.finish()
        deltas.append(detokenizer.next_text(finished=True, delta=True))
    return deltas, stop, detokenizer


def model(text: str, stops: list[str], include: bool, min_tokens: int = 0) -> tuple[str, str | None, int]:
    """What must come out: the text, the stop string, how many tokens were used. One letter is one token."""
    for end in range(min_tokens + 1, len(text) + 1):
        found = [(end - len(s), len(s), s) for s in stops if text[:end].endswith(s)]
        if found:
            at, length, stop = min(found)
            return text[: at + length if include else at], stop, end
    return text, None, len(text)


@pytest.mark.points(2)
@given(text=st.text(alphabet="ab", max_size=10), stops=STOPS, include=st.booleans())
@example(text="Answer\n\n", stops=["\n\n", "\n"], include=False)
@example(text="abab", stops=["b", "ab"], include=False)
def test_the_leftmost_stop_string_is_found_wherever_it_began(text, stops, include) -> None:
    for start in range(len(text) + 1):
        got = find_stop_string(text, stops, start, include)
        ends_after = [
            (at, len(s), s)
            for s in stops
            for at in range(len(text))
            if text.startswith(s, at) and at + len(s) > start
        ]
        expected = None
        if ends_after:
            at, length, stop = min(ends_after)
            expected = (stop, at + length if include else at)
        assert (None if got is None else tuple(got)) == expected, lesson(
            "Of the stop strings that end after `start`, the one that begins first; of those, the shortest. "
            "It may begin before `start`.",
            case=f"text {text!r}, stops {stops}, start {start}, include {include}",
            expected=f"(stop, text_length) = {expected}",
            got=got,
            read=READ,
        )


@pytest.mark.points(2)
@given(
    text=st.text(alphabet="ab", max_size=8), stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)
)
def test_no_more_is_undecided_than_could_become_a_stop_string(text, stops) -> None:
    expected = max((n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
    got = undecided_length(text, stops)
    assert got == expected, lesson(
        "What is held back is the longest end of the text with which a stop string begins. Less shows a "
        "piece of a stop string; more makes a reader wait for nothing.",
        case=f"text {text!r}, stops {stops}",
        expected=expected,
        got=got,
        read=READ,
    )


@pytest.mark.points(3)
@given(
    text=st.text(alphabet="abc", max_size=12),
    stops=STOPS,
    include=st.booleans(),
    min_tokens=st.integers(0, 4),
    sizes=st.lists(st.integers(1, 4), max_size=6),
)
def test_what_is_streamed_is_the_text_before_the_stop_string(text, stops, include, min_tokens, sizes) -> None:
    deltas, stop, detokenizer = stream(
        text, sizes, stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens
    )
    expected_text, expected_stop, num_tokens = model(text, stops, include, min_tokens)
    case = (
        f"text {text!r}, stops {stops}, tokens per step {sizes}, include {include}, min_tokens {min_tokens}"
    )
    got = ("".join(deltas), detokenizer.text, stop)
    assert got == (expected_text, expected_text, expected_stop), lesson(
        "Deltas together are the text, cut at the first stop string that completes after min_tokens, "
        "however many tokens come at once.",
        case=case,
        expected=(expected_text, expected_text, expected_stop),
        got=got,
        read=READ,
    )
    assert detokenizer.token_ids == ids(text)[:num_tokens], lesson(
        "token_ids keeps every token up to the one that completed the stop string, and none behind it.",
        case=case,
        expected=ids(text)[:num_tokens],
        got=detokenizer.token_ids,
        read=READ,
    )


@pytest.mark.points(1)
def test_no_piece_of_a_stop_string_is_ever_streamed() -> None:
    deltas, stop, _ = stream("ab<en<end>cd", stop=["<end>"])
    expected = ["a", "b", "", "", "", "<en", "", "", "", ""]
    assert (deltas, stop) == (expected, "<end>"), lesson(
        "Text is held back while it could become the stop string, and given out with the token that says "
        "it cannot.",
        case='the letters of "ab<en<end>cd", stop "<end>"',
        expected=(expected, "<end>"),
        got=(deltas, stop),
        read=READ,
    )


@pytest.mark.points(1)
def test_a_stop_string_that_is_included_holds_nothing_back() -> None:
    deltas, stop, _ = stream("ab<end>cd", stop=["<end>"], include_stop_str_in_output=True)
    expected = [*"ab<end>"]
    assert (deltas, stop) == (expected, "<end>"), lesson(
        "With include_stop_str_in_output every piece of a stop string is output anyway, so a reader need not "
        "wait for it.",
        case='the letters of "ab<end>cd", stop "<end>", included',
        expected=(expected, "<end>"),
        got=(deltas, stop),
        read=READ,
    )


@pytest.mark.points(1)
def test_what_was_held_back_comes_out_when_no_stop_string_does() -> None:
    deltas, stop, _ = stream("ab<en", stop=["<end>"])
    assert ("".join(deltas), stop) == ("ab<en", None), lesson(
        "When the request ends nothing is undecided any more.",
        case='"ab<en" and then the end, stop "<end>"',
        expected=("ab<en", None),
        got=("".join(deltas), stop),
        read=READ,
    )


@pytest.mark.points(1)
def test_cumulative_text_holds_back_too_and_is_whole_every_time() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], SamplingParams(stop=["bc"]))
    got = []
    for token_id in ids("abab"):
        detokenizer.update([token_id], stop_terminated=False)
        got.append(detokenizer.next_text(finished=False, delta=False))
    assert got == ["a", "a", "aba", "aba"], lesson(
        "Without delta next_text returns all text so far that is decided.",
        case='the letters of "abab", stop "bc"',
        expected=["a", "a", "aba", "aba"],
        got=got,
        read=READ,
    )
    assert detokenizer.finish() is None, "There is no bc in abab."
    got = detokenizer.next_text(finished=True, delta=False)
    assert got == "abab", lesson(
        "When the request ends nothing is undecided any more, for the cumulative text as for deltas.",
        case='the letters of "abab" and then the end, stop "bc"',
        expected="abab",
        got=got,
        read=READ,
    )


AS_IT_IS = [
    ("yes  \nno", "\n", "yes  "),
    ("one two", " two", "one"),
    ("one  two", " ", "one"),
    ("a\n\nb", "\n\n", "a"),
    ("say STOP, stop", "stop", "say STOP, "),
    ("a+b.c", ".", "a+b"),
    ("(a|b)*", "b)*", "(a|"),
]


@pytest.mark.points(1)
@pytest.mark.parametrize(("text", "stop", "expected"), AS_IT_IS)
def test_stop_strings_and_text_are_taken_as_they_are(text, stop, expected) -> None:
    found = find_stop_string(text, [stop], 0, False)
    got = (None if found is None else tuple(found), stream(text, stop=[stop])[2].text)
    assert got == ((stop, len(expected)), expected), lesson(
        "Every character of a stop string counts, white space and case too, none is a pattern, and the text "
        "before it stays as it is: a stop string of two newlines must not end an answer at the first.",
        case=f"text {text!r}, stop {stop!r}: ((stop, text_length), text)",
        expected=((stop, len(expected)), expected),
        got=got,
        read=READ,
    )
    got = "".join(stream(text, stop=[stop])[0])
    assert got == expected, lesson(
        "What is streamed is the text before the stop string, character for character.",
        case=f"text {text!r}, stop {stop!r}",
        expected=repr(expected),
        got=repr(got),
        read=READ,
    )


@pytest.mark.points(1)
def test_the_end_of_the_stream_can_complete_a_stop_string() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], SamplingParams(stop=["\ufffd"]))
    for token_id in TOKENIZER.encode("a日", add_special_tokens=False)[:-1]:
        detokenizer.update([token_id], stop_terminated=False)
    got = (detokenizer.finish(), detokenizer.text)
    assert got == ("\ufffd", "a"), lesson(
        "finish() gives out the bytes that never became a character; that text is searched as well.",
        case='"a", then half of 日, then the end; stop "\ufffd"',
        expected=("\ufffd", "a"),
        got=got,
        read=READ,
    )


@pytest.mark.points(2)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("at_once", [False, True], ids=["one-by-one", "at-once"])
def test_a_stop_token_keeps_its_id_and_loses_its_text(include, at_once) -> None:
    params = SamplingParams(stop=["x"], include_stop_str_in_output=include)
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], params)
    steps = [ids("ab.")] if at_once else [[token_id] for token_id in ids("ab.")]
    for step in steps:
        stop = detokenizer.update(step, stop_terminated=step is steps[-1])
        assert stop is None, "There is no stop string in ab."
    detokenizer.finish()
    expected = ("ab." if include else "ab", ids("ab."))
    got = (detokenizer.text, detokenizer.token_ids)
    assert got == expected, lesson(
        "stop_terminated: the last token is a stop token. Its id is output, its text only when stop strings "
        "are included.",
        case=f'"ab." where "." is a stop token, include {include}',
        expected=expected,
        got=got,
        read=READ,
    )
