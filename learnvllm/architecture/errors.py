"""Errors written for the person who reads them: what was wrong, which value, what to do about it.

One tree separates the caller's mistakes (4xx at the HTTP door, nothing is lost) from the engine's own
failures (5xx). Upstream namesake: vllm/exceptions.py (VLLMValidationError).
"""

from __future__ import annotations

from typing import Any


class LearnVLLMError(Exception):
    """Base of every error this project raises on purpose."""

    status_code: int = 500


class ClientError(LearnVLLMError):
    """The caller can fix it. Becomes an HTTP 4xx."""

    status_code = 400


class ValidationError(ClientError, ValueError):
    """A parameter has a value that cannot be served.

    Args:
        message: what was wrong and what to do, in one or two sentences.
        parameter: the name of the offending field, as the caller spelled it.
        value: the offending value.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:  # keep parameter and value when crossing a process
        return (_rebuild_validation_error, (type(self), self.message, self.parameter, self.value))


class ConfigError(ValidationError):
    """Engine flags contradict each other, or the machine, or the model."""


class ModelLoadError(ValidationError):
    """A model directory or file cannot be used: missing, truncated, or of an unknown architecture."""


class NotFoundError(ClientError):
    """The named thing (a model, a request) is not served here. Becomes an HTTP 404."""

    status_code = 404


class QueueFullError(LearnVLLMError):
    """Admission limits are reached; try again later. Becomes an HTTP 503 with Retry-After."""

    status_code = 503


class ServerError(LearnVLLMError):
    """The caller did nothing wrong."""


class EngineDeadError(ServerError):
    """The engine process has died or been shut down; no request can be served any more."""

    def again(self) -> EngineDeadError:
        """The same news for one more caller: one object raised again and again collects all tracebacks."""
        fresh = EngineDeadError(*self.args)
        fresh.__cause__ = self.__cause__
        return fresh


class EngineTimeoutError(ServerError):
    """The engine did not become ready, or did not answer, within the time allowed."""


def _rebuild_validation_error(
    cls: type[ValidationError], message: str, parameter: str | None, value: Any
) -> ValidationError:
    return cls(message, parameter=parameter, value=value)
