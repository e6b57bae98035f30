"""Exceptions to OpenAI's error bodies: {"error": {message, type, param, code}} and the right status.

The caller's mistakes are 4xx with what to do; ours are 5xx without internals. Nothing else leaves the server.
Upstream namesake: vllm/entrypoints/serve/exception_handling/.
"""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from learnvllm.architecture.errors import LearnVLLMError, NotFoundError, ServerError
from learnvllm.serving.parsing import first_problem

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
MAX_MESSAGE_CHARS, MAX_PARAM_CHARS = 1000, 100


class ModelNotFoundError(NotFoundError):
    code = "model_not_found"
    parameter = "model"


class ShuttingDownError(ServerError):
    status_code = 503
    code = "server_shutting_down"

    def __init__(self) -> None:
        super().__init__("The server is shutting down. Try again, when it is back or with another one.")


def error_body(
    message: str, type: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    param = None if param is None else _presentable(param, MAX_PARAM_CHARS)
    message = _presentable(message, MAX_MESSAGE_CHARS)
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def _presentable(text: str, limit: int) -> str:
    """Text that UTF-8 can carry, of a readable length: a part of it may be what the client sent."""
    text = text if len(text) <= limit else f"{text[:limit]}…"
    return text.encode("utf-8", "backslashreplace").decode()


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """HTTP status and body for an exception."""
    if isinstance(error, LearnVLLMError):
        status = error.status_code
        kind = "invalid_request_error" if status < 500 else "server_error"
        param, code = getattr(error, "parameter", None), getattr(error, "code", None)
        if status == 503:
            code = code or "server_overloaded"
        return status, error_body(str(error), kind, param, code)
    logger.error("A request failed in a way that was not expected.", exc_info=error)
    return 500, error_body("The server failed on this request; its log says why.", "server_error")


def error_response(error: Exception) -> JSONResponse:
    status, body = describe(error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return JSONResponse(body, status, headers)


def install_error_handlers(app: FastAPI) -> None:
    """Make every failure of `app`, known routes or not, speak OpenAI's error format."""

    async def on_error(request: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    app.add_exception_handler(LearnVLLMError, on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, on_error)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 400 and error.__cause__ is not None:  # FastAPI could not parse the body
        return JSONResponse(error_body(_why_no_json(request, error.__cause__)), 400)
    message = {
        404: f"Invalid URL ({asked}). GET / lists what this server has.",
        405: f"Wrong method ({asked}): this URL takes {(error.headers or {}).get('Allow', 'another one')}.",
    }.get(error.status_code, str(error.detail))
    return JSONResponse(error_body(message), error.status_code, error.headers)


def _why_no_json(request: Request, cause: BaseException) -> str:
    if encoding := request.headers.get("content-encoding"):
        return f"The body has Content-Encoding: {encoding}, which is not supported. Send it uncompressed."
    if isinstance(cause, UnicodeDecodeError):
        return f"The body is not UTF-8 at byte {cause.start}. Send JSON as UTF-8, whatever its charset says."
    if isinstance(cause, RecursionError):
        return "The body's JSON is nested too deeply. No field needs more than a few levels."
    return f"The body is not valid JSON: {cause}."


async def _on_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    message, param = _explain(error)
    return JSONResponse(error_body(message, param=param), 400)


def _explain(error: RequestValidationError) -> tuple[str, str | None]:
    """One sentence, and the field it is about."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"The body is not valid JSON: {first['ctx']['error']} at character {first['loc'][-1]}.", None
    if len(first["loc"]) < 2:  # the body as a whole
        if isinstance(error.body, bytes):
            return 'The body must be JSON. Send the header "Content-Type: application/json".', None
        if first["type"] == "missing":
            return "The body is missing. Send a JSON object.", None
    found = first_problem([{**first, "loc": first["loc"][1:]}])
    return found.message, found.parameter
