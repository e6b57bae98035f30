"""Grader of merge_decodes: fewer slices, the same tokens, every pause still to be seen."""

import copy
import itertools
import json

import pytest
from hypothesis import given
from support.day01 import crowd, event, histories, lesson, record, share

from learnvllm.architecture import tracing
from learnvllm.architecture.tracing import to_chrome_trace
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
merge_decodes = subject.merge_decodes


def decodes(trace):
    return [row for row in trace["traceEvents"] if row["name"] == "decode"]


def others(trace):
    return [row for row in trace["traceEvents"] if row["name"] != "decode"]


def runs(events):
    """(track, first step, steps, tokens) of every merged slice."""
    rows = decodes(merge_decodes(to_chrome_trace(events)))
    return [(r["tid"], r["args"]["step"], r["args"]["steps"], r["args"]["tokens"]) for r in rows]


def decoding(steps, name="a"):
    """Steps 12 ms apart: the request decodes in those that `steps` names, another one is in all."""
    last = max(steps)
    return [
        event(n, 1.0 + 0.012 * n, *([share(name, 1, 8 + n, 8)] if n in steps else []), share("z", 1, 1, 900))
        for n in range(last + 1)
    ]


@pytest.mark.points(2)
def test_decodes_of_steps_in_a_row_are_one_slice():
    got = runs(decoding([0, 1, 2, 3]))
    expected = [(1, 0, 4, 4)]
    assert got == expected, lesson(
        "(track, first step, steps, tokens): steps that follow one another make one slice, though there is "
        "a gap of 2 ms between them.",
        case="a decodes in the steps 0 to 3",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(1)
def test_it_lasts_from_the_first_begin_to_the_last_end():
    (row,) = decodes(merge_decodes(to_chrome_trace(decoding([0, 1, 2, 3]))))
    got = (round(row["ts"]), round(row["ts"] + row["dur"]))
    assert got == (0, 46_000), lesson(
        "From the beginning of the first decode to the end of the last, in microseconds.",
        case="four steps of 10 ms, 12 ms apart",
        expected=(0, 46_000),
        got=got,
        read="step-events",
    )
    trace = to_chrome_trace(decoding([0, 1, 2, 3]))
    for number, each in enumerate(decodes(trace)):
        each["args"] |= {"cached": 4, "from": number}
    (row,) = decodes(merge_decodes(trace))
    got, expected = (
        row["args"],
        {"step": 0, "tokens": 4, "computed_before": 8, "cached": 4, "from": 0, "steps": 4},
    )
    assert got == expected, lesson(
        "Of the args tokens is the sum, steps is how many there are, and all the rest is that of the first.",
        case="four decodes, each with 4 cached tokens",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(2)
def test_a_missed_step_is_a_gap():
    got = runs(decoding([0, 1, 3, 4, 5, 8]))
    expected = [(1, 0, 2, 2), (1, 3, 3, 3), (1, 8, 1, 1)]
    assert got == expected, lesson(
        "A request that is not in a step has to wait: its pause must be seen.",
        case="a decodes in the steps 0, 1, 3, 4, 5 and 8",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(1)
def test_each_request_has_runs_of_its_own():
    events = [
        event(n, 0.012 * n, share("a", 1, 8 + n, 8), share("b", 1, 20 + n, 20), share("c", 3, 3 * n, 90))
        for n in range(3)
    ]
    got = runs(events)
    expected = [(1, 0, 3, 3), (2, 0, 3, 3)]
    assert sorted(got) == expected, lesson(
        "Slices of different tracks are never one; prefill is never merged.",
        case="a and b decode in three steps beside c, whose prompt is computed",
        expected=expected,
        got=got,
        read="step-events",
    )


@pytest.mark.points(2)
@given(histories())
def test_nothing_else_changes_and_nothing_is_lost(events):
    trace = to_chrome_trace(events)
    before = copy.deepcopy(trace)
    merged = merge_decodes(trace)
    assert trace == before, (
        "The trace that was given must stay as it was: somebody else may want to draw it, too."
    )
    expected, got = ({key: t[key] for key in t if key != "traceEvents"} for t in (trace, merged))
    assert got == expected, lesson(
        "What the trace says beside its rows is kept.", expected=expected, got=got, read="step-events"
    )
    assert others(merged) == others(trace), lesson(
        "All rows but decodes are kept, in their order.",
        expected=others(trace),
        got=others(merged),
        read="step-events",
    )
    for tid in {row["tid"] for row in decodes(trace)}:
        old, new = ([row for row in decodes(t) if row["tid"] == tid] for t in (trace, merged))
        got = (sum(r["args"]["tokens"] for r in new), sum(r["args"]["steps"] for r in new))
        expected = (sum(r["args"]["tokens"] for r in old), len(old))
        assert got == expected, lesson(
            "(tokens, steps) of a track, added up, are what they were.",
            case=f"track {tid}",
            expected=expected,
            got=got,
            read="step-events",
        )
        expected, got = (rows[0]["args"]["computed_before"] for rows in (old, new))
        assert got == expected, lesson(
            "computed_before of a run is that of its first decode.",
            case=f"the first run of track {tid}",
            expected=expected,
            got=got,
            read="step-events",
        )


@pytest.mark.points(1)
@given(histories())
def test_what_is_merged_cannot_be_merged_further(events):
    merged = merge_decodes(to_chrome_trace(events))
    for first, second in itertools.combinations(decodes(merged), 2):
        follows = second["args"]["step"] == first["args"]["step"] + first["args"]["steps"]
        assert first["tid"] != second["tid"] or not follows, lesson(
            "Two slices of a track whose steps follow one another are one run.",
            expected="one slice",
            got=[first["args"], second["args"]],
            read="step-events",
        )


@pytest.mark.points(1)
def test_no_events_make_an_empty_trace():
    got = merge_decodes({"traceEvents": []})
    assert got == {"traceEvents": []}, lesson(
        "A trace without events stays one.", expected={"traceEvents": []}, got=got, read="step-events"
    )


@pytest.mark.points(2)
def test_the_engines_trace_files_are_less_than_half_as_large(monkeypatch, tmp_path):
    """Sixteen requests of 200 tokens; the engine's own writer calls yours."""
    events = record(crowd(16, 200), block_size=16, max_num_batched_tokens=256)
    monkeypatch.setattr(tracing, "merge_decodes", merge_decodes)
    tracing.write_chrome_trace(events, tmp_path / "trace.json")
    plain, size = len(json.dumps(to_chrome_trace(events))), (tmp_path / "trace.json").stat().st_size
    assert size < plain / 2, lesson(
        "One slice for a run of decodes: the file grows with steps, no longer with steps times requests.",
        case=f"{len(events)} steps of up to 16 requests",
        expected=f"fewer than {plain // 2:,} bytes",
        got=f"{size:,} of {plain:,} bytes",
        read="step-events",
    )


@pytest.mark.points(1)
def test_a_request_that_never_pauses_has_one_run():
    events = record(crowd(16, 200), block_size=16, max_num_batched_tokens=256)
    got = len(runs(events))
    assert got == 16, lesson(
        "Nobody was preempted and everybody decoded in each step: one slice each.",
        expected=16,
        got=got,
        read="step-events",
    )
