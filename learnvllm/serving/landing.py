"""The first thing a newcomer sees: a page to chat on for browsers, a few lines to paste for terminals.

One self-contained file; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import html
from functools import cache
from importlib import resources
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from learnvllm import __version__
from learnvllm.serving.serving_models import OpenAIServingModels

_CURL = """\
curl {base}/v1/chat/completions -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Why is the sky blue?"}}],
       "max_tokens": 100, "temperature": 0.2, "stream": true}}'"""

_SDK = """\
from openai import OpenAI

client = OpenAI(base_url="{base}/v1", api_key="-")
stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Why is the sky blue?"}}],
    max_tokens=100,
    temperature=0.2,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)"""

_TEXT = """\
learnvllm {version} serves {model} (up to {max_model_len} tokens).

Try it from a terminal:

{curl}

or with the OpenAI SDK:

{sdk}

Routes:
{routes}
"""


def curl_example(base: str, model: str) -> str:
    return _CURL.format(base=base, model=model)


def _routes(app: FastAPI) -> str:
    """One line per route of the application, as its own description has them: method and path."""
    paths: dict[str, dict[str, Any]] = app.openapi()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return "\n".join(f"  {method:<5}{path}" for method, path in [*found, ("GET", app.openapi_url)])


def landing_page(request: Request, models: OpenAIServingModels) -> Response:
    base = str(request.base_url).rstrip("/")
    values = {
        "version": __version__,
        "model": models.name,
        "max_model_len": str(models.card.max_model_len),
        "curl": curl_example(base, models.name),
        "sdk": _SDK.format(base=base, model=models.name),
    }
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(_TEXT.format(**values, routes=_routes(request.app)))
    page = _page()
    for name, value in values.items():
        page = page.replace(f"[[{name}]]", html.escape(value))
    return HTMLResponse(page)


@cache
def _page() -> str:
    return resources.files("learnvllm.serving").joinpath("landing.html").read_text(encoding="utf-8")
