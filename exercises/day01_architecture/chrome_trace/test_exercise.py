"""Grader of chrome_trace: every step, phase and request is drawn once, where and as long as it was."""

import itertools
import json

import pytest
from hypothesis import given
from support.day01 import crowd, event, histories, lesson, record, share

from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
to_chrome_trace = subject.to_chrome_trace

STEP_US = 10_000
"""All steps here last 10 ms."""


def draw(events):
    """The rows of a trace, which must be JSON."""
    return json.loads(json.dumps(to_chrome_trace(events)))["traceEvents"]


def slices(rows, *names):
    return [row for row in rows if row["ph"] == "X" and (not names or row["name"] in names)]


def steps_of(rows):
    return [row for row in slices(rows) if row["name"].startswith("step ")]


def names_of_tracks(rows):
    return {row["tid"]: row["args"]["name"] for row in rows if row["ph"] == "M"}


def span(row):
    """Begin and end in whole microseconds."""
    return round(row["ts"]), round(row["ts"] + row["dur"])


def spans_of_requests(rows):
    """Begin and end of every slice of a request, by its id."""
    tracks, spans = names_of_tracks(rows), {}
    for row in slices(rows, "prefill", "decode"):
        spans.setdefault(tracks[row["tid"]].removeprefix("request "), []).append(span(row))
    return spans


TWO = [
    event(
        4,
        100.0,
        share("a", 8, 0, 8),
        share("b", 4, 0, 9, cached=0),
        free_blocks=5,
        num_running=2,
        num_waiting=1,
    ),
    event(5, 100.012, share("a", 1, 8, 8), finished=["a"], preempted=["b"], free_blocks=8, num_running=1),
]


@pytest.mark.points(2)
def test_steps_last_as_long_as_their_phases():
    got = [(row["name"], *span(row)) for row in steps_of(draw(TWO))]
    expected = [("step 4", 0, 10_000), ("step 5", 12_000, 22_000)]
    assert got == expected, lesson(
        "(name, begin, end) of the steps, in microseconds from the first event. forward is part of execute, "
        "and counts once.",
        case="schedule 1 ms, execute 7 ms (forward 5 ms of it), update 2 ms; the next step 12 ms later",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(1)
def test_a_step_says_what_it_did():
    got = [row["args"] for row in steps_of(draw(TWO))]
    expected = [
        {"tokens": 12, "preempted": [], "finished": []},
        {"tokens": 1, "preempted": ["b"], "finished": ["a"]},
    ]
    assert got == expected, lesson(
        "args of a step: tokens of all requests, who gave way, who ended.",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(2)
def test_phases_follow_one_another_and_forward_lies_in_execute():
    got = [
        (row["name"], *span(row)) for row in slices(draw(TWO), "schedule", "execute", "forward", "update")
    ][4:]
    expected = [
        ("schedule", 12_000, 13_000),
        ("execute", 13_000, 20_000),
        ("forward", 13_000, 18_000),
        ("update", 20_000, 22_000),
    ]
    assert sorted(got) == sorted(expected), lesson(
        "The phases of a step lie one after the other; forward is the beginning of execute, and update "
        "follows execute.",
        case="the second step",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(2)
def test_each_request_has_a_track_that_tells_prefill_from_decode():
    rows = draw([*TWO, event(6, 100.024, share("b", 5, 4, 9)), event(7, 100.036, share("b", 1, 9, 9))])
    tracks = names_of_tracks(rows)
    assert list(tracks.values()) == ["engine steps", "request a", "request b"], lesson(
        "Track 0 is `engine steps`; then `request ID`, in the order in which requests appear (rows with "
        "ph M).",
        expected={0: "engine steps", 1: "request a", 2: "request b"},
        got=tracks,
        read="step-events",
    )
    got = [
        (tracks[row["tid"]][-1], row["name"], round(row["ts"])) for row in slices(rows, "prefill", "decode")
    ]
    expected = [
        ("a", "prefill", 0),
        ("b", "prefill", 0),
        ("a", "decode", 12_000),
        ("b", "prefill", 24_000),
        ("b", "decode", 36_000),
    ]
    assert got == expected, lesson(
        "A slice is `decode` when the whole prompt had been computed before the step; a later chunk is "
        "`prefill`.",
        case="a: 8 of 8, 1. b (9 tokens): 4, preempted, 5 from position 4, 1",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(1)
def test_a_slice_says_what_was_computed():
    (row,) = slices(draw([event(3, 1.0, share("a", 5, 16, 40, cached=16))]), "prefill")
    expected = {"step": 3, "tokens": 5, "computed_before": 16, "cached": 16}
    assert row["args"] == expected, lesson(
        "args of a request's slice.",
        case="16 of 40 tokens were cached, 5 are computed",
        expected=expected,
        got=row["args"],
        read="step-events",
    )


@pytest.mark.points(1)
def test_a_single_token_may_be_prefill():
    """All but the last token of a prompt came from the prefix cache."""
    (row,) = slices(draw([event(3, 1.0, share("a", 1, 39, 40, cached=39))]), "prefill", "decode")
    assert row["name"] == "prefill", lesson(
        "It is the prompt's last token that is computed, not one of its output.",
        case="39 of 40 prompt tokens were cached, one is computed",
        expected="prefill",
        got=row["name"],
        read="step-events",
    )


@pytest.mark.points(1)
def test_a_preempted_request_that_comes_back_is_prefilled_with_its_output():
    came_back = share("a", 11, 0, 8)
    (row,) = slices(draw([event(9, 3.0, came_back)]), "prefill", "decode")
    assert row["name"] == "prefill", lesson(
        "Nothing of it is computed, so it is prefill again: prompt and output so far in one go.",
        case="a prompt of 8 and 3 tokens of output, 11 computed from position 0",
        expected="prefill",
        got=row["name"],
        read="two-counters",
    )


@pytest.mark.points(1)
def test_counters_show_blocks_and_queues():
    got = [(row["name"], round(row["ts"]), row["args"]) for row in draw(TWO) if row["ph"] == "C"]
    expected = [
        (name, at, {name: value})
        for at, values in ((0, (5, 2, 1)), (12_000, (8, 1, 0)))
        for name, value in zip(("free blocks", "running", "waiting"), values)
    ]
    assert sorted(got, key=str) == sorted(expected, key=str), lesson(
        "Three counters (ph C) at the beginning of each step.", expected=expected, got=got, read="step-events"
    )


@pytest.mark.points(1)
def test_no_events_make_an_empty_trace():
    got = to_chrome_trace([])
    assert got == {"traceEvents": []}, lesson(
        "A trace without events is a trace without rows.",
        expected={"traceEvents": []},
        got=got,
        read="step-events",
    )
    got = to_chrome_trace(iter([]))
    assert got == {"traceEvents": []}, lesson(
        "Events may come from an iterator, which is read once.",
        expected={"traceEvents": []},
        got=got,
        read="step-events",
    )
    got = len(steps_of(draw(iter(TWO))))
    assert got == 2, lesson(
        "Events may come from an iterator, which is read once.", expected=2, got=got, read="step-events"
    )


@pytest.mark.points(1)
def test_a_request_is_drawn_until_its_step_ends():
    """The second step begins before the first has ended; the third is short, the fourth comes late."""
    short = {"schedule": 0.001, "execute": 0.002, "update": 0.001}
    got = spans_of_requests(
        draw(
            [
                event(0, 5.0, share("a", 8, 0, 8), share("b", 3, 0, 3)),
                event(1, 5.004, share("a", 1, 8, 8)),
                event(2, 5.015, share("a", 1, 9, 8), phases=short),
                event(3, 5.030, share("a", 1, 10, 8), share("b", 1, 3, 3)),
            ]
        )
    )
    expected = {
        "a": [(0, 10_000), (10_000, 14_000), (15_000, 19_000), (30_000, 40_000)],
        "b": [(0, 10_000), (30_000, 40_000)],
    }
    assert got == expected, lesson(
        "A request's slice begins with its step, or where its slice before ends if that is later, and lasts "
        "until its step ends: then its tokens are there.",
        case="(begin, end) in µs. Steps last 0 to 10,000, 4,000 to 14,000 (a alone), 15,000 to 19,000 (a "
        "alone) and 30,000 to 40,000",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(2)
@given(histories())
def test_slices_of_a_track_never_cross(events):
    """With steps in flight the second begins before the first has ended."""
    rows = draw(events)
    for tid, group in itertools.groupby(sorted(slices(rows), key=lambda r: r["tid"]), key=lambda r: r["tid"]):
        spans = sorted({(begin, -end) for begin, end in map(span, group)})
        open_ends = []
        for begin, end in ((begin, -end) for begin, end in spans):
            while open_ends and open_ends[-1] <= begin + 1:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1, lesson(
                "Slices of one track lie inside one another or apart: a viewer draws anything else wrong. A "
                "step that begins before another has ended stands on a track of its own, a request's next "
                "slice begins where its last one ends.",
                case=f"steps begin at {[round(e.start - events[0].start, 3) for e in events]}, last 0.01 s; "
                f"track {tid} ({names_of_tracks(rows).get(tid)})",
                expected=f"nothing from {begin} to {end} µs",
                got=f"a slice until {open_ends[-1]} µs is still open",
                read="step-events",
            )
            open_ends.append(end)


@pytest.mark.points(2)
@given(histories())
def test_everything_is_drawn_once_and_at_its_time(events):
    rows = draw(events)
    tracks = names_of_tracks(rows)
    steps = steps_of(rows)
    origin = events[0].start
    expected = [(f"step {e.step}", round((e.start - origin) * 1e6)) for e in events]
    got = sorted(((row["name"], round(row["ts"])) for row in steps), key=lambda s: int(s[0][5:]))
    assert got == expected, lesson(
        "Every step once, at its own time.", expected=expected, got=got, read="step-events"
    )
    assert all(tracks[row["tid"]] == "engine steps" for row in steps), lesson(
        "Every track that holds steps is called `engine steps`.",
        expected="engine steps",
        got=tracks,
        read="step-events",
    )
    got = sum(span(row)[1] - span(row)[0] for row in steps)
    assert got == STEP_US * len(events), lesson(
        "The steps together last as long as all of them take, in microseconds.",
        case=f"{len(events)} steps of 0.01 s",
        expected=STEP_US * len(events),
        got=got,
        read="step-events",
    )
    most = max(sum(e.start <= at.start < e.start + 0.0099 for e in events) for at in events)
    used = len({row["tid"] for row in steps})
    assert used == most, lesson(
        "As many tracks of steps as there are steps at the same time, and no more: a track that is free "
        "is used again.",
        case=f"steps begin at {[round(e.start - origin, 3) for e in events]} s and last 0.01 s",
        expected=most,
        got=used,
        read="step-events",
    )
    for name in "abc":
        mine = [row for row in slices(rows, "prefill", "decode") if tracks[row["tid"]] == f"request {name}"]
        planned = [(e.step, s.num_tokens) for e in events for s in e.scheduled if s.req_id == name]
        got = [(row["args"]["step"], row["args"]["tokens"]) for row in mine]
        assert got == planned, lesson(
            "A slice for each step that computes something of a request.",
            case=f"request {name}",
            expected=planned,
            got=got,
            read="step-events",
        )


@pytest.mark.points(1)
@pytest.mark.parametrize("ahead", [0, 1])
def test_an_engines_own_steps(ahead):
    events = record(crowd(5, 12), steps_ahead=ahead, num_blocks=30, block_size=4, max_num_batched_tokens=24)
    rows = draw(events)
    got = tuple(
        sum(row["args"]["tokens"] for row in part)
        for part in (slices(rows, "prefill", "decode"), steps_of(rows))
    )
    planned = sum(s.num_tokens for e in events for s in e.scheduled)
    assert got == (planned, planned), lesson(
        "(tokens of all requests' slices, tokens of all steps): both are the tokens that were scheduled.",
        expected=(planned, planned),
        got=got,
        read="step-events",
    )
