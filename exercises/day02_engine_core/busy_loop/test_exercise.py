"""Grader of engine_core.busy_loop: the process but for its sockets, with every message at a chosen moment.

The input socket of these tests knows when the input thread has dealt with a message (it comes back for the
next), so "while step 1 runs" and "between step 1 and step 2" are exact, on any machine.
"""

import queue
import threading

import pytest
import zmq
from support.day02 import CONCEPTS, build_core, expected_tokens, lesson, request

from learnvllm.architecture.messages import EngineCoreOutputs, FinishReason
from learnvllm.engine_core.core import EngineCore
from learnvllm.engine_core.core_proc import Signal
from learnvllm.engine_core.protocol import ENGINE_CORE_DEAD, EngineCoreRequestType, UtilityCall
from learnvllm.engine_core.serial import MsgpackDecoder, MsgpackEncoder
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
EngineCoreProc = subject.EngineCoreProc

ADD, ABORT, UTILITY = (EngineCoreRequestType[name] for name in ("ADD", "ABORT", "UTILITY"))
READ = "aborts"
SOON = 5.0
"""Seconds after which something that should happen at once is said not to happen."""


class InputSocket:
    """What the input thread receives from. `deliver` returns when the message has been dealt with."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue = queue.SimpleQueue()
        self._back = threading.Semaphore(0)

    def recv_multipart(self, copy: bool = True):
        self._back.release()
        message = self._messages.get()
        if message is None:
            raise zmq.ContextTerminated
        return [zmq.Frame(bytes(frame)) for frame in message]

    def deliver(self, kind: EngineCoreRequestType, content) -> None:
        self.deliver_raw([kind.value, *MsgpackEncoder().encode(content)])

    def deliver_raw(self, frames) -> None:
        assert self._back.acquire(timeout=SOON), (
            "The input thread does not come back for the next message: one that it could not read, or "
            "handle, ended it, and nobody is heard any more."
        )
        self._messages.put(frames)
        assert self._back.acquire(timeout=SOON), "The input thread does not come back for the next message."
        self._back.release()

    def end(self) -> None:
        self._messages.put(None)

    def close(self, linger: int | None = None) -> None: ...


class Sent:
    done = True


class OutputSocket:
    """What the output thread sends to: `messages` in order, decoded; ENGINE_CORE_DEAD as it is."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue = queue.SimpleQueue()
        self._frames: list[bytes] = []
        self._decoder = MsgpackDecoder(EngineCoreOutputs)

    def send(self, data, flags: int = 0, copy: bool = True, track: bool = False) -> Sent:
        self._frames.append(bytes(data))
        if not flags & zmq.SNDMORE:
            frames, self._frames = self._frames, []
            self.messages.put(frames[0] if frames == [ENGINE_CORE_DEAD] else self._decoder.decode(frames))
        return Sent()

    def close(self, linger: int | None = None) -> None: ...


class Process:
    """The engine process, its loop on a thread of this one."""

    def __init__(self, **config) -> None:
        self.core = build_core(EngineCore, **config)
        self.input, self.output = InputSocket(), OutputSocket()
        self.proc = EngineCoreProc(self.core, self.input, self.output)
        self.between: dict[int, object] = {}
        """After step n and before the loop looks at its queue again: call this."""
        self.during: dict[int, object] = {}
        """While step n runs: call this."""
        self.batches: list[set[str]] = []
        self.error: BaseException | None = None
        self._hook()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _hook(self) -> None:
        step, execute, numbers = self.core.step, self.core.executor.execute_model, iter(range(1, 10_000))

        def hooked_step():
            result = step()
            self.between.pop(next(numbers), lambda: None)()
            return result

        def observed(scheduler_output, non_block=False):
            self.batches.append(set(scheduler_output.num_scheduled_tokens))
            return execute(scheduler_output, non_block)

        self.core.step, self.core.executor.execute_model = hooked_step, observed
        self.core.executor.during_step = lambda number: self.during.pop(number, lambda: None)()

    def _run(self) -> None:
        try:
            self.proc.run()
        except BaseException as error:
            self.error = error

    def start(self, first=None, drain: bool = True) -> "Process":
        """Begin; `first` is the request whose steps the test counts by. Without `drain` it runs until
        stopped."""
        self._thread.start()
        if first is not None:
            self.during.setdefault(1, lambda: None)
            before = self.during[1]
            drained = (lambda: self.proc.input_queue.put(Signal.DRAIN)) if drain else (lambda: None)
            self.during[1] = lambda: (before(), drained())
            self.input.deliver(ADD, first)
        return self

    def finish(self) -> list:
        """Wait for the loop to return; all messages."""
        self._thread.join(SOON)
        assert not self._thread.is_alive(), (
            "The loop does not come to its end: it waits for a message although there is work, or it runs a "
            f"request that nobody asked for any more.\n  read:     {CONCEPTS}#the-loop"
        )
        self.input.end()
        messages = []
        while not self.output.messages.empty():
            messages.append(self.output.messages.get())
        return messages

    def outputs(self) -> dict[str, tuple[list[int], FinishReason | None]]:
        """Request id -> (tokens, how it ended), after the end of the loop."""
        told: dict[str, tuple[list[int], FinishReason | None]] = {}
        for message in self.finish():
            for o in message.outputs if isinstance(message, EngineCoreOutputs) else []:
                tokens, _ = told.get(o.request_id, ([], None))
                told[o.request_id] = ([*tokens, *o.new_token_ids], o.finish_reason)
        assert self.error is None, f"The loop ended with {self.error!r}; every request in the engine is lost."
        return told


@pytest.mark.points(2)
def test_a_request_is_answered_without_any_further_message() -> None:
    process = Process().start(request("a", [5, 6, 7], 3), drain=False)
    tokens: list[int] = []
    try:
        while len(tokens) < 3:
            message = process.output.messages.get(timeout=SOON)
            tokens += [t for o in message.outputs for t in o.new_token_ids]
    except queue.Empty:
        pass
    process.proc.input_queue.put(Signal.STOP)
    process.finish()
    assert tokens == expected_tokens([5, 6, 7], 3), lesson(
        "The loop waits for messages only while there is no work. With work it steps.",
        case="one request, then silence",
        expected=expected_tokens([5, 6, 7], 3),
        got=tokens,
        read="the-loop",
    )


@pytest.mark.points(2)
def test_a_burst_is_taken_in_together() -> None:
    process = Process()
    burst = [request(f"b{i}", [9, i + 3], 2) for i in range(5)]
    process.during[1] = lambda: [process.input.deliver(ADD, r) for r in burst]
    process.start(request("a", [5, 6, 7], 4))
    told = process.outputs()
    expected = {"a", "b0", "b1", "b2", "b3", "b4"}
    assert process.batches[1] == expected, lesson(
        "Before each step everything that has arrived is taken in, so that a burst is one batch.",
        case="five requests arrive while step 1 runs; the batch of step 2",
        expected=sorted(expected),
        got=sorted(process.batches[1]),
        read="the-loop",
    )
    expected = (expected_tokens([9, 7], 2), FinishReason.LENGTH)
    assert told.get("b4") == expected, lesson(
        "Whoever came with the burst is answered to the end.",
        case="b4, the last of the five",
        expected=expected,
        got=told.get("b4"),
        read="the-loop",
    )


@pytest.mark.points(3)
@pytest.mark.parametrize("moment", ["between", "during"])
def test_an_id_that_was_aborted_can_be_used_again(moment) -> None:
    process = Process()

    def abort_and_add() -> None:
        process.input.deliver(ABORT, ["again"])
        process.input.deliver(ADD, request("again", [9, 8], 3))

    process.during[1] = lambda: process.input.deliver(ADD, request("again", [5, 5], 9))
    getattr(process, moment)[3] = abort_and_add
    process.start(request("a", [5, 6, 7], 8))
    told = process.outputs()
    first = expected_tokens([5, 5], 2 if moment == "between" else 1)
    expected = ([*first, *expected_tokens([9, 8], 3)], FinishReason.LENGTH)
    assert told.get("again") == expected, lesson(
        "An abort ends what came before it, never what came after it. A copy of an abort that is read late "
        "must not find the next request of the same id.",
        case=f'"again" runs from step 2; ABORT again, ADD again arrive {moment} step 3'
        + (" and the next" if moment == "between" else ""),
        expected=f"{expected}: {len(first)} of the first request, then 3 of the second",
        got=told.get("again"),
        read=READ,
    )


@pytest.mark.points(2)
def test_an_abort_that_comes_while_the_step_runs_stops_its_token() -> None:
    process = Process()
    process.during[1] = lambda: process.input.deliver(ADD, request("b", [9, 8], 9))
    process.during[3] = lambda: process.input.deliver(ABORT, ["b"])
    process.start(request("a", [5, 6, 7], 6))
    told = process.outputs()
    expected = (expected_tokens([9, 8], 1), None)
    assert told.get("b") == expected, lesson(
        "An abort that arrives while a step runs is heard before the step's result is handed out.",
        case='"b" runs from step 2; ABORT b arrives while step 3 runs',
        expected=f"{expected}, the token of step 2 only",
        got=told.get("b"),
        read=READ,
    )
    expected = (expected_tokens([5, 6, 7], 6), FinishReason.LENGTH)
    assert told.get("a") == expected, lesson(
        "An abort ends the request that it names, and nobody else's.",
        case='"b" is aborted, "a" goes on',
        expected=expected,
        got=told.get("a"),
        read=READ,
    )


@pytest.mark.points(1)
def test_an_abort_right_behind_its_request_is_not_lost() -> None:
    process = Process()

    def add_and_abort() -> None:
        process.input.deliver(ADD, request("b", [9, 8], 9))
        process.input.deliver(ABORT, ["b"])

    process.during[1] = add_and_abort
    process.start(request("a", [5, 6, 7], 4))
    told = process.outputs()
    assert "b" not in told, lesson(
        "Messages are handled in their order: an abort stands behind its own ADD, even when that has not "
        "been taken in yet.",
        case="ADD b, ABORT b arrive while step 1 runs",
        expected="no token of b",
        got=told.get("b"),
        read=READ,
    )


@pytest.mark.points(1)
def test_a_refused_request_hurts_nobody() -> None:
    process = Process(max_num_queued_reqs=1, max_num_seqs=1)
    more = [request("b", [9, 8], 1), request("one-too-many", [9, 8], 1), request("no-prompt", [], 1)]
    process.during[1] = lambda: [process.input.deliver(ADD, r) for r in more]
    process.start(request("a", [5, 6, 7], 3))
    told = process.outputs()
    got = {request_id: reason and reason.name for request_id, (_, reason) in told.items()}
    expected = {"a": "LENGTH", "b": "LENGTH", "one-too-many": "ERROR", "no-prompt": "ERROR"}
    assert got == expected, lesson(
        "A request that is refused, for its values or because the queue is full, is answered; the others "
        "go on.",
        expected=expected,
        got=got,
        read="the-loop",
    )


@pytest.mark.points(1)
def test_a_failing_call_is_its_callers_trouble() -> None:
    process = Process()
    calls = [UtilityCall(1, "get_request_counts", ["too", "many"]), UtilityCall(2, "get_request_counts", [])]
    process.during[1] = lambda: [process.input.deliver(UTILITY, call) for call in calls]
    process.start(request("a", [5, 6, 7], 3))
    messages = process.finish()
    assert process.error is None, f"A utility call with wrong arguments ended the engine: {process.error!r}"
    answers = [m.utility_output for m in messages if m.utility_output is not None]
    got = [(answer.call_id, answer.error is not None, answer.result) for answer in answers]
    assert got == [(1, True, None), (2, False, [1, 0])], lesson(
        "Every call is answered under its number: with its result, or with what it raised.",
        expected=[(1, True, None), (2, False, [1, 0])],
        got=got,
        read="the-loop",
    )


@pytest.mark.points(1)
def test_a_message_that_cannot_be_read_is_dropped() -> None:
    process = Process()

    def nonsense_and_more() -> None:
        process.input.deliver_raw([b"\x01", b"\xc1 is no msgpack"])
        process.input.deliver(ADD, request("b", [9, 8], 2))

    process.during[1] = nonsense_and_more
    process.start(request("a", [5, 6, 7], 3))
    expected = (expected_tokens([9, 8], 2), FinishReason.LENGTH)
    got = process.outputs().get("b")
    assert got == expected, lesson(
        "After a message that could not be read the next one is served as ever.",
        case="while step 1 runs come a message that cannot be read, then ADD b",
        expected=expected,
        got=got,
        read="the-loop",
    )


@pytest.mark.points(1)
def test_the_last_word_of_an_engine_that_fails() -> None:
    process = Process()

    def fail() -> None:
        raise RuntimeError("the model broke")

    process.during[2] = fail
    process.start(request("a", [5, 6, 7], 5))
    messages = process.finish()
    assert messages[-1:] == [ENGINE_CORE_DEAD], lesson(
        "When a step raises, whoever waits is told before the process ends.",
        case="the model raises in step 2",
        expected=ENGINE_CORE_DEAD,
        got=messages[-1:],
        read="the-loop",
    )
    assert isinstance(process.error, RuntimeError), (
        f"run() raises what the model raised, a RuntimeError, and not {process.error!r}."
    )
