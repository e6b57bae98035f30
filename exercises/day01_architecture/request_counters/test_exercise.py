"""Grader of request_counters: they agree with a list kept beside them; no field of a message is lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day01 import lesson

from learnvllm.architecture import request as reference_module
from learnvllm.architecture.messages import EngineCoreEventType, EngineCoreRequest
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.kv_cache.hashing import make_block_hasher
from learnvllm.scheduling import simulator
from learnvllm.scheduling.async_scheduler import AsyncScheduler
from learnvllm.scheduling.simulator import Arrival, Simulation
from learnvllm.scheduling.toy import make_prompt, predict, toy_config
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
Request = subject.Request

BLOCK = 4


def make(prompt, **options):
    return Request("r", list(prompt), SamplingParams(max_tokens=50), **options)


@pytest.mark.points(2)
@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=9),
    st.lists(st.lists(st.integers(0, 99), max_size=3), max_size=5),
)
def test_known_tokens_are_the_prompt_and_what_came_after(prompt, outputs):
    request, known = make(prompt), list(prompt)
    for tokens in outputs:
        request.append_output_token_ids(tokens)
        known += tokens
        got = (list(request.all_token_ids), request.num_tokens, request.num_output_tokens)
        expected = (known, len(known), len(known) - len(prompt))
        assert got == expected, lesson(
            "(all_token_ids, num_tokens, num_output_tokens) must be the prompt and everything appended, "
            "in order.",
            case=f"prompt {prompt}, appended {outputs}",
            expected=expected,
            got=got,
            read="two-counters",
        )


@pytest.mark.points(1)
def test_the_message_is_left_alone():
    message = EngineCoreRequest("r", [1, 2, 3], SamplingParams(max_tokens=4))
    request = Request.from_engine_core_request(message, None)
    request.append_output_token_ids([7, 8])
    got = (message.prompt_token_ids, request.num_prompt_tokens)
    assert got == ([1, 2, 3], 3), lesson(
        "The prompt belongs to whoever sent it: output must not be appended to that list "
        "(the message's prompt_token_ids, num_prompt_tokens).",
        case="a prompt of 3 tokens, then 2 of output",
        expected=([1, 2, 3], 3),
        got=got,
        read="two-counters",
    )


@pytest.mark.points(2)
def test_what_is_left_to_compute_counts_tokens_in_flight():
    request = make([5, 6, 7])
    told = []

    def note(what):
        told.append((what, request.num_uncomputed_tokens))
        got, expected = (request.num_tokens, request.num_output_tokens), (3, 0) if len(told) < 5 else (4, 1)
        assert got == expected, lesson(
            "(num_tokens, num_output_tokens): a token in flight is in neither, as nobody knows it yet.",
            case="; ".join(what for what, _ in told),
            expected=expected,
            got=got,
            read="two-counters",
        )

    note("arrived with a prompt of 3")
    request.num_computed_tokens = 2
    note("a chunk of 2 was computed")
    request.num_computed_tokens, request.num_output_placeholders = 3, 1
    note("the rest is computed, and its token is in flight")
    request.num_computed_tokens, request.num_output_placeholders = 4, 2
    note("that one's step is scheduled too")
    request.num_output_placeholders = 1
    request.append_output_token_ids([9])
    note("the first token has arrived")
    request.num_computed_tokens, request.num_output_placeholders = 0, 0
    note("preempted: nothing is computed any more")
    expected = [3, 1, 1, 1, 1, 4]
    got = [count for _, count in told]
    assert got == expected, lesson(
        "num_uncomputed_tokens = tokens known or in flight, less those computed. A token in flight has no "
        "id yet, but a position, and a later step computes it like any other.",
        case="; ".join(what for what, _ in told),
        expected=expected,
        got=got,
        read="two-counters",
    )


def shortened(names):
    """Blocks' names as a message can show them; what is no list of names, as it is."""
    are_names = isinstance(names, list) and all(isinstance(name, bytes) for name in names)
    return [name.hex()[:6] for name in names] if are_names else names


@pytest.mark.points(2)
def test_nothing_of_a_message_is_lost_on_the_way_in():
    params = SamplingParams(max_tokens=4)
    message = EngineCoreRequest("r-7", [1, 2, 3, 4, 5], params, [2, 9], 12.5, -3, "salt", 1)
    hasher = make_block_hasher(BLOCK)
    request = Request.from_engine_core_request(message, hasher)
    reference = reference_module.Request.from_engine_core_request(message, hasher)
    breaks = {
        "request_id": "nobody can be answered",
        "prompt_token_ids": "there is nothing to compute",
        "sampling_params": "tokens are chosen in another way than the client asked for",
        "eos_token_ids": "the request does not end where its model ends it",
        "arrival_time": "it lines up as if it had come later",
        "priority": "the urgent wait like everybody",
        "cache_salt": "its prefix is shared with requests of another salt",
        "client_index": "the answer goes to another front end",
        "max_tokens": "it ends at another length",
        "block_hashes": "the prefix cache finds nothing",
    }
    for name, consequence in breaks.items():
        got, expected = getattr(request, name), getattr(reference, name)
        if name == "block_hashes":  # 32 bytes each
            got, expected = shortened(got), shortened(expected)
        assert got == expected, lesson(
            f"{name} must come in with the message, or {consequence}.",
            expected=expected,
            got=got,
            read="messages",
        )
    salt = Request.from_engine_core_request(
        EngineCoreRequest("r", [1], params, cache_salt=""), None
    ).cache_salt
    assert salt == "", lesson(
        "An empty salt is a salt: who sends one shares with nobody who sends none.",
        expected="",
        got=salt,
        read="messages",
    )
    first = EngineCoreRequest("r", [1], params, arrival_time=0.0)
    got = Request.from_engine_core_request(first, None).arrival_time
    assert got == 0.0, lesson(
        "0.0 is a time of arrival, as in every simulation that counts from its beginning: only None means "
        "that nobody has noted one.",
        expected=0.0,
        got=got,
        read="messages",
    )


@pytest.mark.points(2)
@given(st.integers(1, 14), st.lists(st.integers(1, 6), max_size=6))
def test_full_blocks_are_named_once_and_in_order(length, chunks):
    tokens = make_prompt(length + sum(chunks))
    request = make(tokens[:length], block_hasher=make_block_hasher(BLOCK))
    at = length
    for chunk in chunks:
        request.append_output_token_ids(tokens[at : at + chunk])
        at += chunk
    whole = reference_module.Request(
        "w", tokens[:at], SamplingParams(max_tokens=50), block_hasher=make_block_hasher(BLOCK)
    )
    got, expected = shortened(request.block_hashes), shortened(whole.block_hashes)
    assert got == expected, lesson(
        "block_hashes holds one name for each full block, as if all tokens had been there from the "
        "beginning. The hasher returns only the names that block_hashes lacks.",
        case=f"blocks of {BLOCK}, a prompt of {length}, then {chunks} tokens",
        expected=expected,
        got=got,
        read="two-counters",
    )


@pytest.mark.points(1)
def test_without_a_hasher_there_are_no_names():
    request = make(range(9))
    request.append_output_token_ids([1, 2, 3, 4])
    assert request.block_hashes == [], lesson(
        "No hasher means no prefix cache: no names.",
        expected=[],
        got=shortened(request.block_hashes),
        read="two-counters",
    )


@pytest.mark.points(2)
def test_events_are_told_once_and_stay_told():
    request = make([1])
    got = request.take_events()
    assert got is None, lesson(
        "Nothing happened: None, so that the message leaves the field out.",
        expected=None,
        got=got,
        read="messages",
    )
    request.record_event(EngineCoreEventType.QUEUED)
    request.record_event(EngineCoreEventType.SCHEDULED)
    first = request.take_events()
    request.record_event(EngineCoreEventType.PREEMPTED)
    second = request.take_events()
    got = [[event.type.name for event in events or []] for events in (first, second, request.take_events())]
    expected = [["QUEUED", "SCHEDULED"], ["PREEMPTED"], []]
    assert got == expected, lesson(
        "Each event is handed out once, and whoever has got it keeps it: the list given away must not "
        "change any more.",
        case="two events, take, one event, take, take",
        expected=expected,
        got=got,
        read="messages",
    )


@pytest.mark.points(1)
def test_the_order_is_total():
    def at(name, priority, arrival):
        return Request(name, [1], SamplingParams(), priority=priority, arrival_time=arrival)

    ordered = [at("z", -1, 9.0), at("b", 0, 1.0), at("a", 0, 2.0), at("c", 0, 2.0), at("a", 7, 0.0)]
    for lower, upper in itertools.combinations(ordered, 2):
        got = (lower < upper, upper < lower)
        assert got == (True, False), lesson(
            "Lower priority value first, then earlier arrival, then id: of two requests exactly one is "
            "first.",
            case=[(r.request_id, r.priority, r.arrival_time) for r in (lower, upper)],
            expected=(True, False),
            got=got,
            read="two-counters",
        )


@pytest.mark.points(1)
@pytest.mark.parametrize("ahead", [0, 1])
def test_an_engine_runs_on_it(ahead, monkeypatch):
    """The scheduler, a pool that is too small, and your requests: tokens as if each had been alone."""
    monkeypatch.setattr(simulator, "Request", Request)
    config = toy_config(num_blocks=9, block_size=BLOCK, max_num_batched_tokens=7, enable_prefix_caching=True)
    make_scheduler = {"make_scheduler": AsyncScheduler} if ahead else {}
    sim = Simulation(config, steps_ahead=ahead, check=True, **make_scheduler)
    sim.run([Arrival(name, 0.0, make_prompt(9, seed), 12) for seed, name in enumerate("abc")], max_steps=2000)
    for seed, name in enumerate("abc"):
        expected = predict(make_prompt(9, seed), 12)
        assert sim.tokens[name] == expected, lesson(
            "Chunks, hits, preemptions and steps in flight are arithmetic on these counters; one of them "
            "is off.",
            case=f"request {name}, {ahead} steps ahead",
            expected=expected,
            got=sim.tokens[name],
            read="two-counters",
        )
