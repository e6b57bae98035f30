"""Fields of the OpenAI and vLLM APIs that are refused by name, each with what to do instead.

A field may still be sent with its neutral value, because SDKs do; null always means "off".
"""

from __future__ import annotations

from typing import Any

from learnvllm.architecture.errors import ValidationError
from learnvllm.serving.content import shorten

_NO_TOOLS = "tool calling is not implemented yet; describe the tools in the messages and parse the answer"
_NO_GRAMMAR = "structured output is not implemented yet; ask for the format in the prompt"
NOT_SUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {  # name -> (values that mean "off", what to do)
    "tools": (([],), _NO_TOOLS),
    "tool_choice": (("none", "auto"), _NO_TOOLS),
    "parallel_tool_calls": ((True, False), _NO_TOOLS),
    "functions": (([],), _NO_TOOLS),
    "function_call": (("none", "auto"), _NO_TOOLS),
    "response_format": (({"type": "text"},), _NO_GRAMMAR),
    "structured_outputs": ((), _NO_GRAMMAR),
    "guided_json": ((), _NO_GRAMMAR),
    "guided_regex": ((), _NO_GRAMMAR),
    "guided_choice": ((), _NO_GRAMMAR),
    "guided_grammar": ((), _NO_GRAMMAR),
    "modalities": ((["text"],), "answers are text only"),
    "audio": ((), "answers are text only"),
    "prediction": ((), "predicted outputs are not implemented"),
    "reasoning_effort": (("none",), "the model has no reasoning levels; leave it out"),
    "reasoning": ((), "the model has no reasoning levels; leave it out"),
    "verbosity": (("medium",), "say in the prompt how long the answer should be"),
    "service_tier": (("auto", "default"), "there is one tier"),
    "store": ((False,), "nothing is stored; use false"),
    "metadata": (({},), "nothing is stored, so metadata has no use"),
    "web_search_options": ((), "the server has no web search"),
    "prompt_cache_key": (("",), "prefix caching needs no key; `cache_salt` keeps a cache private"),
    "prompt_cache_retention": ((), "prefix caching keeps blocks as long as memory allows"),
    "suffix": (("",), "the model cannot insert between a prompt and a suffix"),
    "documents": (([],), "put the documents into the messages"),
    "chat_template": ((), "a template per request is not accepted; start the server with --chat-template"),
    "echo": ((False,), "chat does not echo; use /v1/completions, or continue_final_message"),
    "use_beam_search": ((False,), "beam search is not implemented; use n"),
    "length_penalty": ((1, 1.0), "beam search is not implemented"),
    "allowed_token_ids": ((), "use logit_bias"),
    "truncate_prompt_tokens": ((), "shorten the prompt; /tokenize counts its tokens"),
    "spaces_between_special_tokens": ((True,), "use true"),
    "mm_processor_kwargs": (({},), "the model reads text only"),
    "kv_transfer_params": (({},), "KV transfer is not implemented"),
    "vllm_xargs": (({},), "there are no such arguments here"),
    "prompt_embeds": ((), "send text or token ids"),
    "add_special_tokens": (
        (False,),
        "only /v1/completions and /tokenize take it; a chat template brings its own",
    ),
}


def require_neutral(name: str, value: Any) -> None:
    """Raises: ValidationError: `name`, a key of NOT_SUPPORTED, is asked for."""
    neutral, advice = NOT_SUPPORTED[name]
    if value is None or any(type(value) is type(n) and value == n for n in neutral):
        return
    raise ValidationError(
        f"{name}={shorten(value)}: {name!r} is not supported: {advice}.", parameter=name, value=value
    )
