"""Grader of engine_core.output_collector: any order of puts and gets against plain concatenation."""

import asyncio
import copy
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.day02 import CONCEPTS, lesson, time_limit

from learnvllm.architecture.errors import EngineDeadError
from learnvllm.architecture.outputs import CompletionOutput, Logprob, RequestOutput
from learnvllm.architecture.sampling_params import RequestOutputKind
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
RequestOutputCollector, merge_outputs = subject.RequestOutputCollector, subject.merge_outputs

DELTA, CUMULATIVE = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE
READ = "the-slot-between-engine-and-client"


def completion(index: int, begin: int, end: int, finished: bool = False) -> CompletionOutput:
    """Tokens begin to end of completion `index`; token 7 is the text "7."."""
    return CompletionOutput(
        index=index,
        text="".join(f"{t}." for t in range(begin, end)),
        token_ids=list(range(begin, end)),
        cumulative_logprob=-float(end),
        logprobs=[{t: Logprob(-1.0, 1)} for t in range(begin, end)],
        finish_reason="length" if finished else None,
    )


def output(*completions: CompletionOutput, finished: bool = False, **more) -> RequestOutput:
    return RequestOutput("r", "hi", [1, 2], list(completions), finished, **more)


class Engine:
    """Makes the outputs of a request with two completions, as OutputProcessor would."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self.kind, self.lengths = kind, [0, 0]

    def step(self, index: int, num_tokens: int) -> RequestOutput:
        begin = self.lengths[index] if self.kind is DELTA else 0
        self.lengths[index] += num_tokens
        return output(completion(index, begin, self.lengths[index]))


class Client:
    """What a client knows after the outputs it has taken."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self.kind, self.texts, self.num_logprobs = kind, ["", ""], [0, 0]

    def take(self, taken: RequestOutput) -> None:
        for c in taken.outputs:
            joined = self.kind is DELTA
            self.texts[c.index] = self.texts[c.index] + c.text if joined else c.text
            self.num_logprobs[c.index] = (self.num_logprobs[c.index] if joined else 0) + len(c.logprobs)
            assert len(c.logprobs) == len(c.token_ids), lesson(
                "Log-probabilities stay with their tokens.",
                expected=f"{len(c.token_ids)} entries",
                got=len(c.logprobs),
                read=READ,
            )


@pytest.mark.points(4)
@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE], ids=["delta", "cumulative"])
@given(steps=st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 1), st.integers(1, 3))), max_size=14))
@example(steps=[(0, 1), (1, 1), (0, 1)])
def test_a_client_that_comes_when_it_likes_knows_everything_once(kind, steps) -> None:
    """None: the client takes what is there. (index, n): the engine puts n more tokens of that completion."""
    engine, client = Engine(kind), Client(kind)
    collector = RequestOutputCollector(kind)
    for step in [*steps, None]:
        if step is not None:
            collector.put(engine.step(*step))
        elif (taken := collector.get_nowait()) is not None:
            client.take(taken)
            again = collector.get_nowait()
            assert again is None, lesson(
                "What has been taken is gone.", case=f"{steps}", expected=None, got=again, read=READ
            )
    expected = ["".join(f"{t}." for t in range(n)) for n in engine.lengths]
    assert client.texts == expected, lesson(
        "However late a client takes its outputs, it learns every token of every completion, once.",
        case=f"{kind.name}, puts (completion, tokens) and takes (None): {steps}",
        expected=expected,
        got=client.texts,
        read=READ,
    )
    assert client.num_logprobs == engine.lengths, lesson(
        "However late a client takes its outputs, it gets the log-probabilities of every token, once.",
        case=f"{kind.name}, puts (completion, tokens) and takes (None): {steps}",
        expected=engine.lengths,
        got=client.num_logprobs,
        read=READ,
    )


@pytest.mark.points(1)
@given(num_puts=st.integers(1, 30))
def test_there_is_never_more_than_one_output_in_store(num_puts) -> None:
    engine, collector = Engine(DELTA), RequestOutputCollector(DELTA)
    for _ in range(num_puts):
        collector.put(engine.step(0, 1))
    first, second = collector.get_nowait(), collector.get_nowait()
    assert (len(first.outputs[0].token_ids), second) == (num_puts, None), lesson(
        "The store is a slot, not a queue: it holds one output, however far the engine runs ahead.",
        case=f"{num_puts} puts, then two takes",
        expected=f"{num_puts} tokens, then None",
        got=f"{len(first.outputs[0].token_ids)} tokens, then {second}",
        read=READ,
    )


@pytest.mark.points(2)
def test_a_merged_output_says_what_the_newer_one_says() -> None:
    old = output(completion(0, 0, 2), prompt_logprobs=[None, {1: Logprob(-1.0, 1)}])
    new = output(completion(0, 2, 3, finished=True), finished=True, num_cached_tokens=5)
    before = copy.deepcopy((old, new))
    merged = merge_outputs(old, new, delta=True)
    got = (
        merged.finished,
        merged.outputs[0].finish_reason,
        merged.outputs[0].text,
        merged.outputs[0].cumulative_logprob,
        merged.num_cached_tokens,
    )
    assert got == (True, "length", "0.1.2.", -3.0, 5), lesson(
        "Text, ids and logprobs are joined; the end, the sum and all the rest are the newer output's.",
        expected=(True, "length", "0.1.2.", -3.0, 5),
        got=got,
        read=READ,
    )
    assert merged.prompt_logprobs == old.prompt_logprobs, lesson(
        "Deltas bring prompt_logprobs once. Merged, they must not be lost.",
        expected=old.prompt_logprobs,
        got=merged.prompt_logprobs,
        read=READ,
    )
    plain = [output(replace(completion(i, 0, 1), logprobs=None)) for i in (1, 0, 1)]
    merged = merge_outputs(merge_outputs(*plain[:2], delta=True), plain[2], delta=True)
    got = [(c.index, c.text, c.logprobs) for c in merged.outputs]
    assert got == [(0, "0.", None), (1, "0.0.", None)], lesson(
        "(index, text, logprobs): completions stand in the order of their index, whoever came first; who "
        "asked for no log-probabilities gets None, not an empty list of them.",
        expected=[(0, "0.", None), (1, "0.0.", None)],
        got=got,
        read=READ,
    )
    assert (old, new) == before, "merge_outputs returns a new output; somebody may still hold the old ones."


@pytest.mark.points(1)
def test_an_abort_ends_what_was_not_taken_yet() -> None:
    """OutputProcessor.abort_requests puts a last output, finish_reason "abort", behind whatever lies
    there."""
    collector = RequestOutputCollector(DELTA)
    collector.put(output(completion(0, 0, 2)))
    last = completion(0, 2, 2)
    last.finish_reason = "abort"
    collector.put(output(last, finished=True))
    taken = collector.get_nowait()
    got = (taken.outputs[0].token_ids, taken.outputs[0].finish_reason, taken.finished)
    assert got == ([0, 1], "abort", True), lesson(
        "An aborted request still tells its client what it had made, and that it is over.",
        expected=([0, 1], "abort", True),
        got=got,
        read="aborts",
    )


@pytest.mark.points(2)
@given(puts_before=st.integers(0, 2), puts_after=st.integers(0, 2))
def test_an_error_displaces_outputs_and_stays(puts_before, puts_after) -> None:
    engine, collector = Engine(DELTA), RequestOutputCollector(DELTA)
    for _ in range(puts_before):
        collector.put(engine.step(0, 1))
    collector.put(EngineDeadError("the engine is gone"))
    for _ in range(puts_after):
        collector.put(engine.step(0, 1))
    collector.put(ValueError("what came of the first error"))
    got = "nothing raised"
    try:
        got = f"returned {collector.get_nowait()}"
    except EngineDeadError:
        got = "EngineDeadError raised"
    except ValueError:
        got = "ValueError raised"
    assert got == "EngineDeadError raised", lesson(
        "An error reaches the client whatever came before or after it, and it is raised, not returned. Of "
        "two errors the first says why, and stays.",
        case=f"puts of {puts_before} outputs, EngineDeadError, {puts_after} outputs, ValueError; then a take",
        expected="EngineDeadError raised",
        got=got,
        read=READ,
    )


HANGS = (
    "get() neither returned nor slept: when there is nothing to take it must wait for the next put without "
    f"keeping other coroutines from running.\n  read:     {CONCEPTS}#{READ}"
)


@pytest.mark.points(2)
def test_get_sleeps_until_something_comes_again_and_again() -> None:
    async def session() -> list[str]:
        engine, collector, got = Engine(DELTA), RequestOutputCollector(DELTA), []
        for _ in range(3):
            waiting = asyncio.create_task(collector.get())
            for _ in range(3):
                await asyncio.sleep(0)  # everybody gets a turn
            assert not waiting.done(), "get() returned although nothing had been put."
            collector.put(engine.step(0, 1))
            got.append((await asyncio.wait_for(waiting, 1)).outputs[0].text)
        return got

    with time_limit(3, HANGS):
        try:
            got = asyncio.run(session())
        except TimeoutError:
            raise AssertionError("put() did not wake the coroutine that waits in get().") from None
    assert got == ["0.", "1.", "2."], lesson(
        "Each get returns what was put since the last one.", expected=["0.", "1.", "2."], got=got, read=READ
    )


@pytest.mark.points(1)
def test_a_client_that_gives_up_takes_nothing_with_it() -> None:
    async def session() -> RequestOutput | None:
        engine, collector = Engine(DELTA), RequestOutputCollector(DELTA)
        gives_up = asyncio.create_task(collector.get())
        await asyncio.sleep(0)
        collector.put(engine.step(0, 1))  # it has been woken, and has not run yet,
        gives_up.cancel()  # when it is cancelled
        await asyncio.gather(gives_up, return_exceptions=True)
        collector.put(engine.step(0, 1))
        return collector.get_nowait()

    with time_limit(3, HANGS):
        taken = asyncio.run(session())
    got = None if taken is None else taken.outputs[0].text
    assert got == "0.1.", lesson(
        "A coroutine may be cancelled at any await. What it has not returned is still there for the next "
        "one.",
        case="a put while get() waits, the waiting get cancelled, another put, then a take",
        expected="0.1.",
        got=got,
        read="aborts",
    )


@pytest.mark.points(1)
def test_who_finds_the_slot_empty_after_waking_goes_on_waiting() -> None:
    async def session() -> list[str]:
        engine, collector = Engine(DELTA), RequestOutputCollector(DELTA)
        waiting = [asyncio.create_task(collector.get()) for _ in range(2)]
        await asyncio.sleep(0)
        collector.put(engine.step(0, 1))
        for _ in range(3):
            await asyncio.sleep(0)
        results = [task.result() for task in waiting if task.done()]
        for task in waiting:
            task.cancel()
        return ["None" if result is None else result.outputs[0].text for result in results]

    with time_limit(3, HANGS):
        got = asyncio.run(session())
    assert got == ["0."], lesson(
        "An event says that something has come, not that it is still there: look again after each wait.",
        case="two coroutines wait in get(), one output is put",
        expected="['0.']: one of them gets it, the other waits",
        got=got,
        read=READ,
    )
