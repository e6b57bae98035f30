"""The API key is asked for on every route there is, and on those there will be; health alone is public."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from learnvllm.serving.api_server import build_app
from learnvllm.serving.middleware import PUBLIC_PATHS
from learnvllm.serving.options import CorsOptions
from learnvllm.serving.renderer import Renderer
from tests.serving.fake_engine import MAX_MODEL_LEN, FakeEngine
from tests.serving.server import RunningServer, running

KEYS = ["first-key", "zweiter-schlüssel"]


def make_app() -> FastAPI:
    engine = FakeEngine()
    cors = CorsOptions(allowed_origins=["https://page.example"])
    app = build_app(engine, Renderer(engine.tokenizer, MAX_MODEL_LEN), api_keys=KEYS, cors=cors)

    @app.get("/added/later")
    async def added_later() -> str:
        return "open"

    return app


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    with running(make_app()) as server:
        yield server


@pytest.fixture(scope="module")
def client(locked: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=locked.url) as client:
        yield client


def every_route() -> list[tuple[str, str]]:
    """(method, path) of all routes, the ones FastAPI adds by itself too, from the very application."""
    found = []
    for route in make_app().routes:
        for original in (
            getattr(route, "original_router", route).routes if not isinstance(route, Route) else [route]
        ):
            found += [(method, original.path.replace("{model:path}", "tiny")) for method in original.methods]
    return sorted(found)


def test_the_list_of_routes_is_the_whole_list() -> None:
    paths = {path for _, path in every_route()}
    assert {
        "/", "/health", "/version", "/metrics", "/openapi.json", "/v1/models", "/v1/models/tiny",
        "/v1/completions", "/v1/chat/completions", "/v1/completions/render", "/v1/chat/completions/render",
        "/tokenize", "/detokenize", "/added/later",
    } == paths  # fmt: skip


@pytest.mark.parametrize(("method", "path"), every_route())
def test_every_route_but_health_wants_the_key(client: httpx.Client, method: str, path: str) -> None:
    public = path in PUBLIC_PATHS
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
    ):
        response = client.request(method, path, headers=headers)
        assert (response.status_code == 401) is not public, (path, headers)
    for key in KEYS:
        headers = {"Authorization": f"Bearer {key}".encode()}
        assert client.request(method, path, headers=headers).status_code != 401


def test_only_health_is_public() -> None:
    assert {"/health"} == PUBLIC_PATHS


@pytest.mark.parametrize(
    "path", ["/nowhere", "/health/", "//health", "/health/../v1/models", "/HEALTH", "/v1/%2e%2e/health"]
)
def test_what_only_looks_like_health_is_locked(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 401


def test_the_refusal_is_openais(locked: RunningServer) -> None:
    with (
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0) as sdk,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        sdk.models.list()
    assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=KEYS[0], max_retries=0) as sdk:
        assert sdk.models.list().data[0].id == "tiny"


def test_a_page_may_ask_whether_it_may_call_before_it_has_the_key(client: httpx.Client) -> None:
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    response = client.options("/v1/completions", headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    other = client.options("/v1/completions", headers={**asked, "Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers
    assert client.options("/v1/completions").status_code == 401
