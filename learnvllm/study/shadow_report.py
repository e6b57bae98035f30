"""A difference as a learner can use it: both decisions side by side, what stood before, whose code it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from learnvllm.study.overlay_plan import Plan
from learnvllm.study.shadow_engine import MAY_BE_RIGHT
from learnvllm.study.shadow_limit import where
from learnvllm.study.shadow_lockstep import Difference, unlike

NAME, WIDTH = 24, 48
"""Of the column of names, and of each of the two others."""
ID = 6
"""Characters shown of a long request id."""
MAX_ROWS, MAX_OF_LIST = 12, 4
"""Rows shown of one thing; of a long list, which a single entry too many shifts as a whole."""
_CALLS = {
    "add_request": "when a request was added",
    "schedule": "when the step was decided",
    "update_from_output": "when the step's tokens were taken in",
    "finish_requests": "when requests were ended",
    "reset_prefix_cache": "when the prefix cache was reset",
}
_SHOWN_BEFORE = ("running", "waiting", "requests", "block tables", "free blocks")


def headline(difference: Difference, suspects: Sequence[Plan]) -> str:
    """One sentence: for clients, and for the end of the log."""
    names = " or ".join(plan.exercise.id for plan in suspects) or "how your exercises work together"
    about = f" ({difference.subject})" if difference.subject else ""
    return (
        f"--shadow: your code and the reference part at step {difference.step}{about}, in "
        f"{', '.join(difference.what[:3])}. Look at {names}; the engine's log shows both decisions."
    )


def report(difference: Difference, suspects: Sequence[Plan], proved: bool) -> str:
    """All there is to say. `proved`: each suspect was seen to differ when it ran alone."""
    difference = _with_short_ids(difference)
    about = f", about {difference.subject}" if difference.subject else ""
    lines = [
        f"--shadow: step {difference.step}, {_CALLS[difference.operation]}{about}: "
        "your code and the reference differ for the first time.",
        "",
        f"  {'':<{NAME}}{'yours':<{WIDTH}}  the reference",
    ]
    for name in difference.what:
        lines += _compare(name, difference.mine.get(name), difference.theirs.get(name))
    if difference.error is not None:
        lines += ["", "  Yours raised:", *(f"    {line}" for line in where(difference.error, suspects))]
    same = [name for name in difference.theirs if name not in difference.what]
    lines += ["", f"  Alike: {', '.join(same)}." if same else "  Nothing else could be compared."]
    lines += ["", "  Before the call both had:"]
    for name in _SHOWN_BEFORE:
        lines += _show(name, difference.before.get(name))
    lines += ["", *_verdict(suspects, proved)]
    return "\n".join(line.rstrip() for line in lines)


def _with_short_ids(difference: Difference) -> Difference:
    """Request ids of servers are long; their ends will do in a table."""
    ids = {*difference.theirs.get("requests", ()), *difference.before.get("requests", ())}
    short = {name: f"…{name[-ID:]}" for name in ids if len(name) > 2 * ID}
    if len(set(short.values())) < len(short):
        return difference

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {renamed(key): renamed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(renamed(item) for item in value)
        return short.get(value, value) if isinstance(value, str) else value

    return replace(
        difference,
        mine=renamed(difference.mine),
        theirs=renamed(difference.theirs),
        before=renamed(difference.before),
        subject=", ".join(renamed(name) for name in difference.subject.split(", ")),
    )


def _verdict(suspects: Sequence[Plan], proved: bool) -> list[str]:
    if not suspects:
        return ["  None of your exercises differs when it runs alone: it is how they work together."]
    how = "It is" if proved else "Yours among the code that decides this:"
    parts = "; ".join(f"{plan.exercise.id} ({', '.join(map(str, plan.parts[:6]))})" for plan in suspects)
    return [f"  {how} {parts}.", f"  Next: learnvllm check {suspects[0].exercise.id}. {MAY_BE_RIGHT}"]


def _compare(name: str, mine: Any, theirs: Any) -> list[str]:
    """Rows of the table: of a mapping and of a long list only what differs."""
    if isinstance(mine, list) and isinstance(theirs, list) and max(len(mine), len(theirs)) > MAX_ROWS:
        pairs = [
            (f"[{index}] {_text(a)}", f"[{index}] {_text(b)}")
            for index, (a, b) in enumerate(zip_longest(mine, theirs, fillvalue="nothing"))
            if a != b
        ]
        return _table(name, pairs[:MAX_OF_LIST], len(pairs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = unlike(mine, theirs)
        both = [_what_differs(mine.get(key, "nothing"), theirs.get(key, "nothing")) for key in keys]
        pairs = [(f"{key}: {_text(a)}", f"{key}: {_text(b)}") for key, (a, b) in zip(keys, both)]
    else:
        pairs = list(zip_longest(_rows(mine), _rows(theirs), fillvalue=""))
    return _table(name, pairs[:MAX_ROWS], len(pairs))


def _table(name: str, pairs: Sequence[tuple[str, str]], count: int) -> list[str]:
    lines = [
        f"  {'' if index else name:<{NAME}}{_cut(a, WIDTH):<{WIDTH}}  {_cut(b, WIDTH)}"
        for index, (a, b) in enumerate(pairs)
    ]
    return lines + ([f"  {'':<{NAME}}… and {count - len(pairs)} more"] if count > len(pairs) else [])


def _what_differs(mine: Any, theirs: Any) -> tuple[Any, Any]:
    """Of two mappings the entries that are not alike."""
    if not (isinstance(mine, dict) and isinstance(theirs, dict)):
        return mine, theirs
    keys = unlike(mine, theirs)
    return {key: mine.get(key) for key in keys}, {key: theirs.get(key) for key in keys}


def _show(name: str, value: Any) -> list[str]:
    """A state in one wide column."""
    rows = _rows(value)
    lines = [
        f"  {'' if index else name:<{NAME}}{_cut(row, 2 * WIDTH)}"
        for index, row in enumerate(rows[:MAX_ROWS])
    ]
    return lines + ([f"  {'':<{NAME}}… and {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else [])


def _rows(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}: {_text(item)}" for key, item in value.items()] or ["none"]
    if isinstance(value, list) and any(isinstance(item, tuple) for item in value):
        return [_text(item) for item in value]
    return ["none" if value in (None, [], "") else _text(value)]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, tuple):
        return f"{value[0]}: {', '.join(_text(item) for item in value[1:])}" if value else "()"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return "none" if value is None else str(value)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
