"""The renderer writes what transformers would, refuses what cannot fit, and keeps the event loop free."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from learnvllm.architecture.errors import ConfigError, ValidationError
from learnvllm.engine_core.tokenizer import Tokenizer
from learnvllm.model_layers import embedded
from learnvllm.serving.content import parse_messages
from learnvllm.serving.renderer import ChatParams, ContextLengthError, Renderer
from tests.serving.fake_tokenizer import CHAT_TEMPLATE, SPECIAL, fake_tokenizer

# Small templates that lean on what real ones lean on.
TEMPLATES = {
    "chatml": CHAT_TEMPLATE,
    "blocks and whitespace": """
{%- if messages[0].role == 'system' -%}
    {{- 'SYS ' + messages[0].content | trim + '\n' -}}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set rest = messages -%}
{%- endif -%}
{% for message in rest %}
    {% if loop.first %}
{{ bos_token }}
    {% endif %}
    [{{ message['role'] | upper }}] {{ message['content'] }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
[ASSISTANT]
{%- endif %}
""",
    "parts": """
{%- for message in messages -%}
{{ '<' ~ message.role ~ '>' }}
{%- if message.content is string -%}{{ message.content | trim }}
{%- else -%}{%- for part in message['content'] -%}{{ part.text | trim }}|{%- endfor -%}{%- endif -%}
{{ eos_token }}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}
""",
    "namespace, loop controls, tojson": """
{%- set ns = namespace(count=0) -%}
{%- for message in messages -%}
{%- set ns.count = ns.count + 1 -%}
{%- if message.role == 'system' -%}{%- continue -%}{%- endif -%}
{{ message | tojson }}
{{ message.content | tojson(indent=2, ensure_ascii=true) }}
{%- if ns.count > 5 -%}{%- break -%}{%- endif -%}
{%- endfor -%}
{{ ns.count }}{{ dict(a=1) | tojson }}
""",
    "generation blocks": """
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{%- else -%}{{ message.role + ': ' + message.content + '\n' }}{%- endif -%}
{%- endfor -%}
""",
    "a variable of the request": "{{ messages[-1].content }}{% if thinking is defined %} <think>{% endif %}",
    "today": "{{ strftime_now('%Y') }}{{ messages[0].content }}",
}

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": " be brief \n"}, {"role": "user", "content": "<b>&\"'½</b>"}],
    [
        {"role": "user", "content": "  one  "},
        {"role": "assistant", "content": "two\n\n```python\nprint(1)\n```"},
        {"role": "user", "content": "{{ messages }}{% raw %}"},
    ],
]


def renderer_for(template: str) -> Renderer:
    return Renderer(fake_tokenizer(), 256, template)


def theirs(template: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    rendered, _ = render_jinja_template([messages], chat_template=template, **SPECIAL, **kwargs)
    return str(rendered[0])


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["user", "system", "three turns"])
@pytest.mark.parametrize("prompted", [True, False])
def test_the_text_is_transformers_text(template: str, messages: Any, prompted: bool) -> None:
    ours = renderer_for(template).render_messages(
        parse_messages(messages),
        ChatParams(add_generation_prompt=prompted, template_kwargs={"thinking": True}),
    )
    assert ours == theirs(template, messages, add_generation_prompt=prompted, thinking=True)


@pytest.mark.parametrize("name", ["chatml", "blocks and whitespace", "parts", "generation blocks"])
@pytest.mark.parametrize("opening", ["Once upon", "Once upon ", "Once\n", " Once"])
def test_a_continued_message_is_left_open_as_transformers_does(name: str, opening: str) -> None:
    template = TEMPLATES[name]
    messages = [{"role": "user", "content": "Once upon"}, {"role": "assistant", "content": opening}]
    params = ChatParams(add_generation_prompt=False, continue_final_message=True)
    ours = renderer_for(template).render_messages(parse_messages(messages), params)
    assert ours == theirs(template, messages, continue_final_message=True)


@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=20)),
        min_size=1,
        max_size=4,
    )
)
def test_any_conversation_is_rendered_as_transformers_does(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in turns]
    template = TEMPLATES["blocks and whitespace"]
    ours = renderer_for(template).render_messages(parse_messages(messages))
    assert ours == theirs(template, messages, add_generation_prompt=True)


def test_parts_are_joined_unless_the_template_reads_them() -> None:
    messages = parse_messages([{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}])
    assert "a\nb" in renderer_for(TEMPLATES["chatml"]).render_messages(messages)
    assert "a|b|" in renderer_for(TEMPLATES["parts"]).render_messages(messages)


@pytest.mark.skipif(not embedded.EMBEDDED.is_ready(), reason="the embedded model is not here")
def test_the_embedded_models_prompts_are_transformers_prompts() -> None:
    from transformers import AutoTokenizer

    path = embedded.EMBEDDED.path
    oracle = AutoTokenizer.from_pretrained(path)
    renderer = Renderer(Tokenizer.from_directory(path), 8192)
    for messages in CONVERSATIONS:
        text = oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert renderer.render_messages(parse_messages(messages)) == text
        ids = oracle.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert renderer.render_chat(parse_messages(messages)).token_ids == ids


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ messages[7].content.nothing }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 // 0 }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ messages[0]['content'] + 1 }}",
    ],
)
def test_a_template_that_fails_refuses_the_messages(template: str) -> None:
    with pytest.raises(ValidationError) as caught:
        renderer_for(template).render_messages(parse_messages(CONVERSATIONS[0]))
    assert caught.value.parameter == "messages"


def test_a_template_that_is_no_jinja_is_found_at_the_start() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        renderer_for("fine\n{% if %}")


def test_a_model_without_a_template_says_what_else_there_is() -> None:
    with pytest.raises(ValidationError, match="/v1/completions"):
        Renderer(fake_tokenizer(chat_template=None), 256).render_messages(parse_messages(CONVERSATIONS[0]))


def test_the_character_limit_never_refuses_what_would_fit() -> None:
    renderer = Renderer(fake_tokenizer(), 64)
    longest = max(renderer.tokenizer.backend.get_vocab(), key=len)
    assert renderer.encode(longest * 64, True).token_ids == [renderer.tokenizer.token_to_id(longest)] * 64
    with pytest.raises(ContextLengthError, match="characters"):
        renderer.encode("a" * (64 * len(longest) + 1), True)


async def test_a_long_prompt_does_not_hold_up_the_event_loop() -> None:
    renderer = Renderer(fake_tokenizer(), 200_000)
    task = asyncio.create_task(renderer.render_prompt_async("hello world, " * 30_000))
    ticks, longest = 0, 0.0
    while not task.done():
        began = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - began)
        ticks += 1
    assert len((await task).token_ids) > 30_000
    assert ticks > 10  # others had their turns while it was tokenized
    renderer.shutdown()
