"""The stories the visualisers tell: which requests come, when, and how much memory there is for them.

A story is data. Prompts and answers are words, a token each; what the scheduler and the pool make of them is
recorded from the engine core (trace_engine.py), never written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RequestScript:
    """One request and what the model will say to it."""

    name: str
    prompt: tuple[str, ...]
    answer: tuple[str, ...]
    arrives: int = 0
    """Before which turn of the loop; in the loop's own stories, at which time."""
    ends_itself: bool = False
    """The model ends the answer; otherwise max_tokens does, which the scheduler knows beforehand."""
    priority: int = 0
    cache_salt: str | None = None


@dataclass(frozen=True)
class Scenario:
    """One story of a visualiser."""

    id: str
    title: str
    intro: str
    requests: tuple[RequestScript, ...]
    config: dict[str, Any] = field(default_factory=dict)
    """Arguments of trace_engine.make_config."""
    with_front_end: bool = False
    """Times, queues and lanes matter: requests come through the front end's thread."""


def made_up(label: str, count: int) -> tuple[str, ...]:
    """`count` words that nobody else has."""
    return tuple(f"{label}{i}" for i in range(count))


def _request(name: str, prompt: int | str, answer: int | str, **rest: Any) -> RequestScript:
    def words(what: int | str, label: str) -> tuple[str, ...]:
        return made_up(label, what) if isinstance(what, int) else tuple(what.split())

    return RequestScript(name, words(prompt, f"{name}."), words(answer, f"{name}>"), **rest)


_POOL_OF_PLENTY = {"num_blocks": 41, "block_size": 8}
_LONG_AMONG_SHORT = (
    _request("a", 14, 12),
    _request("b", 22, 14),
    _request("c", 9, 9, arrives=1),
    _request("long", 150, 4, arrives=3),
    _request("d", 12, 5, arrives=4),
)
_SYSTEM = made_up("system", 32)


SCHEDULER: tuple[Scenario, ...] = (
    Scenario(
        "chunked",
        "A long prompt beside decodes",
        "Three short requests run when one of 150 tokens arrives. A step computes at most 64 tokens; the "
        "long prompt takes what the others leave, chunk by chunk, and nobody stops.",
        _LONG_AMONG_SHORT,
        {**_POOL_OF_PLENTY, "budget": 64},
    ),
    Scenario(
        "protected",
        "The same with a share for prompts",
        "The same requests, but beside n decodes a step computes at most 8 n prompt tokens (at least 16). "
        "The long prompt takes more steps, all of them short: whoever decodes waits less for its next "
        "token.",
        _LONG_AMONG_SHORT,
        {**_POOL_OF_PLENTY, "budget": 64, "prefill_tokens_per_decode": 8},
    ),
    Scenario(
        "preemption",
        "Preemption: memory runs out",
        "Blocks of 8 tokens, 11 of them. All prompts fit, but answers grow until no block is free. The last "
        "in line gives everything back, waits at the head of the queue and computes its tokens again.",
        (
            _request("a", 20, 16),
            _request("b", 22, 15),
            _request("c", 19, 9),
            _request("d", 12, 4, arrives=2),
        ),
        {"num_blocks": 12, "block_size": 8, "budget": 48},
    ),
    Scenario(
        "prefix",
        "Prefix hits: computed once, used four times",
        "Every prompt begins with the same 32 tokens of a system prompt. The first request computes them; "
        "the others find its blocks and begin behind them.",
        (
            RequestScript("a", _SYSTEM + made_up("a.", 10), made_up("a>", 9)),
            RequestScript("b", _SYSTEM + made_up("b.", 14), made_up("b>", 7), arrives=2),
            RequestScript("c", _SYSTEM + made_up("c.", 5), made_up("c>", 6), arrives=2),
            _request("other", 40, 5, arrives=3),
            RequestScript("d", _SYSTEM, made_up("d>", 4), arrives=5),
        ),
        {**_POOL_OF_PLENTY, "budget": 32},
    ),
    Scenario(
        "priority",
        "Priority: who is urgent goes first",
        "At most two run at a time and the policy is priority: the lower number is served first, whatever "
        "came before. Watch the order of the queue.",
        (
            _request("a", 18, 8, priority=5),
            _request("b", 16, 10, priority=5),
            _request("c", 30, 4, arrives=1, priority=5),
            _request("d", 12, 4, arrives=2, priority=9),
            _request("urgent", 24, 4, arrives=4, priority=0),
        ),
        {**_POOL_OF_PLENTY, "budget": 32, "max_num_seqs": 2, "policy": "priority"},
    ),
)

_ASSISTANT = (
    "You are a helpful assistant. Answer in few words."  # nine words: two blocks of four and one more
)
_POETS = "Name a poet from France please"

_FLOOD = (
    _request("a", f"{_ASSISTANT} Who wrote Faust ?", "Goethe ."),
    _request("b", f"{_ASSISTANT} Who wrote Emma ?", "Austen .", arrives=3),
    _request("x", "Translate this sentence into French for me : good morning", "Bonjour .", arrives=6),
    _request("y", "Sum up these minutes of our meeting in one short line", "We met again .", arrives=9),
    _request("c", f"{_ASSISTANT} Who wrote Nana ?", "Zola .", arrives=12),
)

BLOCKS: tuple[Scenario, ...] = (
    Scenario(
        "sharing",
        "Two requests, one beginning",
        "Blocks hold four words. Requests that begin alike hold the same blocks; what is freed keeps its "
        "name and is found again by the last request.",
        (
            _request("a", f"{_ASSISTANT} Who wrote Faust ?", "Goethe wrote it in Weimar ."),
            _request("b", f"{_ASSISTANT} Who wrote Emma ?", "Jane Austen did .", arrives=1),
            _request("c", f"{_ASSISTANT} Who wrote Faust ?", "Goethe did .", arrives=8),
        ),
        {"num_blocks": 15, "block_size": 4, "budget": 16},
    ),
    Scenario(
        "eviction",
        "Eviction: the least recently used goes first",
        "Seven blocks for requests that need more. Free blocks keep their content until one is handed out "
        "again; the end of a prompt goes before its beginning, and a hit saves its blocks from the queue.",
        (
            _request("a", f"{_POETS} who lived before 1900", "Hugo of course ."),
            _request("b", "Tell me about rivers in Asia today", "The Ganges is long .", arrives=4),
            _request("c", f"{_POETS} who lived after 1900", "Jacques Prévert .", arrives=9),
            _request(
                "d",
                "List all seven colours of the rainbow in order from red to violet please",
                "Red , orange .",
                arrives=13,
            ),
            _request("e", f"{_POETS} who lived before 1900", "Hugo again .", arrives=17),
        ),
        {"num_blocks": 8, "block_size": 4, "budget": 16},
    ),
    Scenario(
        "salt",
        "A salt keeps tenants apart",
        "All three requests have the same prompt. Two come with the cache salt of one tenant and share; the "
        "third has another salt, so its first block has another name, and with it every block that follows.",
        (
            _request("a", f"{_ASSISTANT} My secret is safe", "It is safe .", cache_salt="tenant-1"),
            _request(
                "b", f"{_ASSISTANT} My secret is safe", "It is safe .", arrives=1, cache_salt="tenant-2"
            ),
            _request(
                "c", f"{_ASSISTANT} My secret is safe", "It is safe .", arrives=2, cache_salt="tenant-1"
            ),
        ),
        {"num_blocks": 17, "block_size": 4, "budget": 16},
    ),
    Scenario(
        "flood",
        "A flood pushes out what everybody shares",
        "Six blocks. a and b share their beginning; x and y come once and never again. Least recently used "
        "goes first, so when c arrives the shared beginning is gone.",
        _FLOOD,
        {"num_blocks": 7, "block_size": 4, "budget": 16},
    ),
    Scenario(
        "segmented",
        "The same flood, with a protected segment",
        "The same requests under prefix_cache_eviction=segmented: content that was found again waits behind "
        "content that was not, so the flood drowns itself and c finds the beginning.",
        _FLOOD,
        {"num_blocks": 7, "block_size": 4, "budget": 16, "eviction": "segmented"},
    ),
)

_STREAM = (
    _request("a", 24, 6),
    _request("b", 12, 4, arrives=9, ends_itself=True),
    _request("c", 16, 5, arrives=26),
)

LOOP: tuple[Scenario, ...] = (
    Scenario(
        "sync",
        "One step at a time",
        "The core schedules a step, waits for it, takes it in, and only then decides the next. While it "
        "decides, the worker has nothing to do.",
        _STREAM,
        {**_POOL_OF_PLENTY, "budget": 32},
        with_front_end=True,
    ),
    Scenario(
        "async",
        "One step ahead",
        "The same requests. The core schedules step n + 1 while the worker computes step n, counting on "
        "tokens whose ids it does not know yet. b ends its own answer, which nobody could foresee: one token "
        "in vain.",
        _STREAM,
        {**_POOL_OF_PLENTY, "budget": 32, "async_scheduling": True},
        with_front_end=True,
    ),
)
