"""Grader of never_finished: a client that reads messages off the wire learns of every end."""

import inspect
import itertools

import msgspec
import pytest
from support.day01 import lesson

from learnvllm.architecture.messages import EngineCoreEvent, EngineCoreEventType, FinishReason
from learnvllm.architecture.request import RequestStatus
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.scheduling import output_maker
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.toy import ToyDevice, make_prompt, predict, toy_config, toy_kv_cache
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
Output, Outputs, Request = subject.EngineCoreOutput, subject.EngineCoreOutputs, subject.EngineCoreRequest

PATIENCE = 30
"""Steps after which a client that has no answer would wait for ever."""


def sent(message):
    """A message as it is on the other side of a socket."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))


class Client:
    """Asks an engine without a model, and reads answers as any client does: until `finished`."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(output_maker, "EngineCoreOutput", Output)
        config = toy_config(num_blocks=40, block_size=4)
        self.scheduler = Scheduler(config, toy_kv_cache(config))
        self.device = ToyDevice()

    def ask(self, prompt, max_tokens, eos=(), abort_after=None):
        """The tokens that arrive and how the answer ended, None if it never did. Somebody else aborts it."""
        from learnvllm.architecture.request import Request as Running

        message = sent(Request("r", list(prompt), SamplingParams(max_tokens=max_tokens), list(eos)))
        self.scheduler.add_request(Running.from_engine_core_request(message, None))
        tokens = []
        for step in range(PATIENCE):
            for answer in self._abort() if step == abort_after else self._step():
                tokens += answer.new_token_ids
                if answer.finished:
                    return tokens, answer.finish_reason
        return tokens, None

    def _step(self):
        output = self.scheduler.schedule()
        messages = self.scheduler.update_from_output(output, self.device.execute(output))
        return sent(Outputs(messages[0].outputs if 0 in messages else [])).outputs

    def _abort(self):
        """What tells a client that its request was ended: a message without a token."""
        status = RequestStatus.FINISHED_ABORTED
        ended = self.scheduler.finish_requests("r", status)
        return sent(
            Outputs([Output(name, [], finish_reason=status.finish_reason) for name, _ in ended])
        ).outputs


PROMPT = make_prompt(7, seed=3)
ANSWER = predict(PROMPT, 12)


@pytest.mark.points(1)
def test_a_client_learns_that_the_model_has_ended_its_answer(monkeypatch):
    eos = ANSWER[5]
    length = ANSWER.index(eos) + 1
    got = Client(monkeypatch).ask(PROMPT, max_tokens=12, eos=[eos])
    assert got == (ANSWER[:length], FinishReason.STOP), lesson(
        f"The client has waited {PATIENCE} steps. A message that is a request's last says so, whatever "
        f"ended it.",
        case=f"the model ends its answer with token {eos}, the {length}th",
        expected=(ANSWER[:length], "stop"),
        got=(got[0], str(got[1])),
        read="messages",
    )


@pytest.mark.points(1)
@pytest.mark.parametrize(
    ("limits", "length", "reason", "why"),
    [
        (
            {"max_tokens": 5},
            5,
            FinishReason.LENGTH,
            "max_tokens ends a request, and its last message says so.",
        ),
        (
            {"max_tokens": 12, "abort_after": 3},
            3,
            FinishReason.ABORT,
            "A request that is aborted has ended, too. Its last message brings no token.",
        ),
    ],
    ids=["length", "abort"],
)
def test_a_client_learns_of_the_other_ends(monkeypatch, limits, length, reason, why):
    got = Client(monkeypatch).ask(PROMPT, **limits)
    assert got == (ANSWER[:length], reason), lesson(
        why,
        case=", ".join(f"{name}={value}" for name, value in limits.items()),
        expected=(ANSWER[:length], str(reason)),
        got=(got[0], str(got[1])),
        read="messages",
    )


@pytest.mark.points(1)
@pytest.mark.parametrize("reason", [None, *FinishReason], ids=str)
def test_finished_means_that_there_is_a_reason(reason):
    error = subject.RemoteError("ValidationError", "no", "top_p", 7)
    others = [
        {},
        {"error": error},
        {"stop_reason": 9},
        {"events": [EngineCoreEvent(EngineCoreEventType.QUEUED, 2.5)]},
    ]
    for tokens, other in itertools.product(([], [1, 2]), others):
        message = sent(Output("r", tokens, finish_reason=reason, **other))
        assert message.finished is (reason is not None), lesson(
            "A request has ended when there is a reason, whichever it is, with or without a token in the "
            "message, and whatever else it says: a refused request ends with an error, too.",
            case=", ".join(
                f"{name}={value}"
                for name, value in {"finish_reason": reason, "new_token_ids": tokens, **other}.items()
            ),
            expected=reason is not None,
            got=message.finished,
            read="messages",
        )


@pytest.mark.points(1)
def test_every_field_arrives():
    error = subject.RemoteError("ValidationError", "no", "top_p", 7)
    messages = [
        Request("r", [1, 2], SamplingParams(max_tokens=4), [2, 9], 1.5, -3, "salt", 1),
        Output("r", [7], None, None, FinishReason.LENGTH, "END", [], 4, None),
        Output("r", [7], stop_reason=9, events=[EngineCoreEvent(EngineCoreEventType.QUEUED, 2.5)]),
        Output("r", [], finish_reason=FinishReason.ERROR, error=error),
        Outputs([Output("r", [1])], subject.SchedulerStats(1, 2, 0.5, 3, 4, 5, 6), timestamp=2.5),
        Outputs(utility_output=subject.UtilityOutput(3, [1], error)),
    ]
    for message in messages:
        assert sent(message) == message, lesson(
            "What arrives is what was sent, field by field.",
            expected=message,
            got=sent(message),
            read="messages",
        )


@pytest.mark.points(1)
def test_the_wire_is_the_one_that_is_in_use():
    """Another front end, of another version perhaps, reads fields by their place."""
    output = Output("r", [7], None, None, FinishReason.STOP, "END", None, 4)
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(output))
    wire = wire[:8] if isinstance(wire, list) else wire  # a field more at the end disturbs nobody
    expected = ["r", [7], None, None, 0, "END", None, 4]
    assert wire == expected, lesson(
        "The place is the name: fields keep their order, FinishReason its numbers, and no names are sent.",
        expected=expected,
        got=wire,
        read="messages",
    )
    wire = msgspec.msgpack.decode(
        msgspec.msgpack.encode(Request("r", [1], SamplingParams(max_tokens=4), [2], 1.5, 3))
    )
    assert isinstance(wire, list), lesson("No names are sent.", expected="a list", got=wire, read="messages")
    assert (wire[:2], wire[3:6]) == (["r", [1]], [[2], 1.5, 3]), lesson(
        "The place is the name.", expected=["r", [1], "…", [2], 1.5, 3], got=wire, read="messages"
    )


@pytest.mark.points(1)
def test_a_decode_costs_a_few_bytes():
    outputs = [Output(f"request-{i}", [1000 + i]) for i in range(100)]
    size = len(msgspec.msgpack.encode(Outputs(outputs))) / 100
    assert size < 25, lesson(
        "Each step sends this for each request: an id and a token, nothing that is as always.",
        expected="below 25 bytes",
        got=f"{size:.0f} bytes",
        read="costs",
    )
    default = inspect.signature(Output).parameters["finish_reason"].default
    assert default is None, lesson(
        "Without a finish_reason an output is not a request's last.",
        expected=None,
        got=default,
        read="messages",
    )
