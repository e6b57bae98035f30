"""Whatever is written, in whatever pieces: its beginning and end are kept, and the rest is counted."""

from hypothesis import given
from hypothesis import strategies as st

from learnvllm.study.bounded_text import Bounded, cut


@given(st.lists(st.text("abc", max_size=9), max_size=9), st.integers(1, 6))
def test_pieces_make_no_difference(pieces: list[str], kept: int) -> None:
    bounded, text = Bounded(kept), "".join(pieces)
    for piece in pieces:
        assert bounded.write(piece) == len(piece)
    left_out = len(text) - 2 * kept
    expected = (
        f"{text[:kept]}\n… {left_out:,} characters left out …\n{text[-kept:]}" if left_out > 0 else text
    )
    assert bounded.take() == expected
    assert cut(text, 2 * kept) == expected
    assert bounded.take() == ""


@given(st.text("abc", max_size=9), st.integers(1, 12))
def test_a_text_that_is_short_enough_stays_whole(text: str, kept: int) -> None:
    shown = cut(text, kept)
    if len(text) <= kept:
        assert shown == text
    else:
        head, note, tail = shown.split("\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) == len(tail) == kept // 2
        assert note == f"… {len(text) - 2 * len(head)} characters left out …"
