"""Chat templates: Jinja programs that a model brings along, run in a sandbox, to turn messages into one text.

The environment is the one templates are written for (transformers'), so the text is the same, byte for byte.
Upstream namesakes: vllm/renderers/hf.py, transformers/utils/chat_template_utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from learnvllm.architecture.errors import ConfigError, ValidationError
from learnvllm.serving.content import ChatMessage

# Set by the server; a request's chat_template_kwargs may not replace them.
RESERVED = (
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template",
    "tokenize",
)  # fmt: skip
# Put behind the last message to find it again in the rendered text. Templates may trim its trailing space.
_MARK = "\ue000continue-here\ue001 "


class ChatTemplate:
    """One compiled template.

    Args:
        source: the Jinja source.
        variables: bos_token, eos_token and the like, by the names templates use.
    Raises:
        ConfigError: the source is not valid Jinja.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = _make_environment()
        try:
            self.template = environment.from_string(source)
            self.reads_parts = _iterates_over_content(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"The chat template is not valid Jinja: line {error.lineno}: {error.message}.",
                parameter="chat_template",
            ) from None
        self.variables = dict(variables)

    def render(
        self,
        messages: list[ChatMessage],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        """The conversation as one text.

        Raises:
            ValidationError: the template refuses it (roles that must alternate, ...) or cannot be run on it.
        """
        taken = [name for name in kwargs if name in RESERVED]
        if taken:
            raise ValidationError(
                f"chat_template_kwargs sets {taken[0]!r}, which the server sets itself.",
                parameter="chat_template_kwargs",
                value=taken[0],
            )
        turns = [self._as_dict(message) for message in messages]
        if continue_final_message:
            _append_mark(turns[-1])
        variables = {
            **self.variables,
            **kwargs,
            "messages": turns,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self.template.render(variables)
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            KeyError,
            ArithmeticError,
            OverflowError,
        ) as error:
            raise ValidationError(
                f"The model's chat template refuses these messages: {error}.", parameter="messages"
            ) from None
        return _cut_at_mark(text) if continue_final_message else text

    def _as_dict(self, message: ChatMessage) -> dict[str, Any]:
        # OpenAI's developer role is its newer name for system, the one that models were trained on.
        role = "system" if message.role == "developer" else message.role
        content: Any = message.content
        if isinstance(content, list):
            if self.reads_parts:
                content = [{"type": "text", "text": part} for part in content]
            else:
                content = "\n".join(content)
        name = {} if message.name is None else {"name": message.name}
        return {"role": role, "content": content, **name}


def _append_mark(turn: dict[str, Any]) -> None:
    content = turn["content"]
    if isinstance(content, list):
        content[-1]["text"] += _MARK
    else:
        turn["content"] = content + _MARK


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_MARK.rstrip())
    if at < 0:
        raise ValidationError(
            "continue_final_message: the model's chat template does not keep the last message as it is, so "
            "there is nothing to continue.",
            parameter="continue_final_message",
        )
    # Where the template trims a message, the space before the mark would have been trimmed too.
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()


# ------------------------------------------------------------------------------------------- environment


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks training targets; here it is simply rendered."""

    tags = {"generation"}  # noqa: RUF012  (jinja's own contract)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter would escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _iterates_over_content(tree: nodes.Template) -> bool:
    """Whether the template has a loop over a message's content, so reads parts rather than one string."""
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if _is_content(assign.node, names) and isinstance(assign.target, nodes.Name):
            names.add(assign.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
