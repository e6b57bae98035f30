"""The HTTP application: routes, and nothing else. Everything they do is in the serving_* modules.

Upstream namesake: vllm/entrypoints/launchers/app.py (build_app).
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware

from learnvllm import __version__
from learnvllm.serving.engine_client import EngineClient
from learnvllm.serving.errors import install_error_handlers
from learnvllm.serving.landing import landing_page
from learnvllm.serving.middleware import (
    AuthenticationMiddleware,
    BodyLimitMiddleware,
    DrainMiddleware,
    ServerState,
)
from learnvllm.serving.options import CorsOptions
from learnvllm.serving.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from learnvllm.serving.renderer import Renderer
from learnvllm.serving.serving_chat import OpenAIServingChat
from learnvllm.serving.serving_completion import OpenAIServingCompletion
from learnvllm.serving.serving_models import OpenAIServingModels
from learnvllm.serving.serving_tokenize import ServingTokenization
from learnvllm.serving.streaming import ClientDisconnected, EventStream, or_disconnect

# nginx's status for "the client closed the connection"; nobody sees it but the access log.
_CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True)
class Serving:
    """What the routes call. Kept in `app.state.serving`."""

    engine: EngineClient
    models: OpenAIServingModels
    chat: OpenAIServingChat
    completion: OpenAIServingCompletion
    tokenization: ServingTokenization
    state: ServerState


def build_app(
    engine: EngineClient,
    renderer: Renderer,
    *,
    state: ServerState | None = None,
    api_keys: list[str] | None = None,
    cors: CorsOptions | None = None,
) -> FastAPI:
    """The application around one engine.

    Args:
        state: shared with the launcher, which drains through it.
        api_keys: any of them opens every route; none: no key is asked for.
    """
    # No /docs: its page would load scripts from elsewhere. /openapi.json describes the API.
    app = FastAPI(title="learnvllm", version=__version__, docs_url=None, redoc_url=None)
    state = state or ServerState()
    models = OpenAIServingModels(engine.config)
    app.state.serving = Serving(
        engine=engine,
        models=models,
        chat=OpenAIServingChat(engine, renderer, models),
        completion=OpenAIServingCompletion(engine, renderer, models),
        tokenization=ServingTokenization(renderer, models),
        state=state,
    )
    app.include_router(router)
    install_error_handlers(app)
    app.add_middleware(BodyLimitMiddleware)  # added last is outermost
    if api_keys:
        app.add_middleware(AuthenticationMiddleware, api_keys=api_keys)
    app.add_middleware(DrainMiddleware, state=state)
    cors = cors or CorsOptions()
    if cors.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors.allowed_origins,
            allow_methods=cors.allowed_methods,
            allow_headers=cors.allowed_headers,
            allow_credentials=cors.allow_credentials,
        )
    return app


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


async def _answer(
    request: Request, work: Coroutine[Any, Any, BaseModel | list[Any] | EventStream]
) -> Response:
    """Run `work` unless the client hangs up, and send what it returns."""
    out_of_time = _serving(request).state.out_of_time
    try:
        result = await or_disconnect(request, work, out_of_time)
    except ClientDisconnected:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)
    if isinstance(result, EventStream):
        result.out_of_time = out_of_time
        return result
    if isinstance(result, BaseModel):
        return Response(result.model_dump_json(exclude_unset=True), media_type="application/json")
    return JSONResponse([item.model_dump(exclude_unset=True) for item in result])


router = APIRouter()


@router.get("/")
async def show_landing_page(request: Request) -> Response:
    """What this server is and what to try: a page for browsers, text for everyone else."""
    return landing_page(request, _serving(request).models)


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine lives, 503 after."""
    engine = _serving(request).engine
    if engine.errored:
        return Response(status_code=503)
    return Response(status_code=200)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text format, vLLM's names."""
    return Response(
        _serving(request).engine.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    return JSONResponse(_serving(request).models.list().model_dump())


@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, request: Request) -> Response:
    return JSONResponse(_serving(request).models.get(model).model_dump())


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    return await _answer(request, _serving(request).chat.create_chat_completion(body))


@router.post("/v1/completions")
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    return await _answer(request, _serving(request).completion.create_completion(body))


@router.post("/v1/chat/completions/render")
async def render_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """The token ids and parameters this request would send to the engine."""
    return await _answer(request, _serving(request).chat.render(body))


@router.post("/v1/completions/render")
async def render_completion(body: CompletionRequest, request: Request) -> Response:
    return await _answer(request, _serving(request).completion.render(body))


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    return await _answer(request, _serving(request).tokenization.tokenize(body))


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    return await _answer(request, _serving(request).tokenization.detokenize(body))
