"""`learnvllm chat`: a conversation in the terminal, with an engine of its own or a running server.

Ctrl-C stops the answer, not the program; Ctrl-D leaves. Piped in and out, it reads a message a line and
prints plain text.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from learnvllm.architecture import envs
from learnvllm.architecture.errors import ClientError, EngineDeadError, LearnVLLMError, ValidationError
from learnvllm.serving.chat_backends import ChatBackend, Message
from learnvllm.serving.chat_view import ChatView
from learnvllm.serving.content import shorten
from learnvllm.serving.parsing import parse_request
from learnvllm.serving.protocol import ChatCompletionRequest

HELP = """\
/reset            forget the conversation
/system TEXT      set the system message (without TEXT: remove it)
/params           show sampling parameters; /params temperature=0.2 top_p=0.9 sets, /params top_p= unsets
/help             this list
/quit             leave (Ctrl-D too); Ctrl-C stops an answer"""

DEFAULT_PARAMS = {"temperature": 0.2, "top_p": 0.9}
"""Cooler than the API's defaults of 1, at which a small model rambles."""


class Conversation:
    """Messages, parameters, and the commands that change them."""

    def __init__(
        self, backend: ChatBackend, params: dict[str, Any], system: str | None, view: ChatView
    ) -> None:
        self.backend = backend
        self.params = params
        self.system = system
        self.turns: list[Message] = []
        self.view = view

    def messages(self) -> list[Message]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return system + self.turns

    def ask(self, text: str) -> bool:
        """One turn; whether it was answered. What was said before an interruption stays; a turn that failed,
        or was stopped before the first word, is forgotten.

        Raises:
            EngineDeadError: there is nobody left to ask.
        """
        question = {"role": "user", "content": text}
        said, num_tokens, interrupted = "", None, False
        began, first = time.perf_counter(), None
        stream = self.backend.stream([*self.messages(), question], self.params)
        try:
            with self.view.answer() as show:
                for piece in stream:
                    first = first or time.perf_counter()
                    said += piece.text
                    num_tokens = piece.num_tokens
                    show(piece.text)
        except KeyboardInterrupt:
            interrupted = True
        except EngineDeadError:
            raise
        except LearnVLLMError as error:
            advice = "/reset starts afresh" if isinstance(error, ClientError) else "ask again to retry"
            self.view.error(f"{error} ({advice}.)")
            return False
        finally:
            stream.close()
        if said or not interrupted:
            self.turns += [question, {"role": "assistant", "content": said}]
        ended = time.perf_counter()
        self.view.stats(num_tokens, (first or ended) - began, ended - (first or ended), interrupted)
        return True

    def command(self, line: str) -> bool:
        """Run a /command; False to leave."""
        name, _, rest = line.partition(" ")
        if name in ("/quit", "/exit", "/q"):
            return False
        if name == "/reset":
            self.turns.clear()
            self.view.note("The conversation is forgotten.")
        elif name == "/system":
            self.system = rest.strip() or None
            self.view.note("No system message." if self.system is None else f"System: {self.system}")
        elif name == "/params":
            self._set_params(rest.split())
        elif name == "/help":
            self.view.note(HELP)
        else:
            self.view.error(f"There is no command {name}. /help lists them.")
        return True

    def _set_params(self, assignments: list[str]) -> None:
        changed = dict(self.params)
        for assignment in assignments:
            name, _, text = assignment.partition("=")
            changed.pop(name, None)
            if text:
                changed[name] = _parse_value(text)
        try:
            check_params(changed)
        except ValidationError as error:
            self.view.error(str(error))
            return
        self.params = changed
        shown = ", ".join(f"{name}={shorten(value)}" for name, value in changed.items())
        self.view.note(shown or "No parameters are set; the server's defaults apply.")


def check_params(params: dict[str, Any]) -> None:
    """Check sampling fields before there is anything to say.

    Raises:
        ValidationError: a field is unknown, is the chat's own, or its value is out of range.
    """
    for name in ("messages", "model", "stream", "stream_options"):
        if name in params:
            raise ValidationError(f"{name} is set by the chat itself.", parameter=name)
    if params.get("n") not in (None, 1):
        raise ValidationError(
            f"n={params['n']}: a conversation goes on from one answer; try `learnvllm generate --n`.",
            parameter="n",
            value=params["n"],
        )
    fields = {"messages": [{"role": "user", "content": "-"}], **params}
    request = parse_request(ChatCompletionRequest, fields)
    request.to_sampling_params(1 if request.token_limit is None else request.token_limit)


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def say_starting() -> None:
    """Loading takes a few seconds; a person wants to know."""
    if sys.stderr.isatty():
        print("Starting the engine…", end="\r", file=sys.stderr, flush=True)


def run(backend: ChatBackend, params: dict[str, Any], system: str | None, *, plain: bool) -> int:
    """Talk until the input ends; 1 if the last message got no answer."""
    view = ChatView(plain=plain, history=envs.home() / "chat_history")
    conversation = Conversation(backend, params, system, view)
    view.welcome(backend.model)
    answered = True
    while (line := view.read()) is not None:
        if line in ("exit", "quit"):  # as in a shell; nobody asks a model that
            break
        if line.startswith("/"):
            if not conversation.command(line):
                break
        elif line:
            try:
                answered = conversation.ask(line)
            except EngineDeadError as error:
                view.error(str(error))
                return 1
    return 0 if answered else 1
