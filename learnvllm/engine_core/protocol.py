"""The words a front end and the engine process say to each other besides requests and outputs.

One byte says what a message to the engine is; READY ends the handshake; errors travel by class name.
Upstream namesakes: vllm/v1/engine/__init__.py (EngineCoreRequestType), vllm/v1/engine/core_client.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from learnvllm.architecture import errors
from learnvllm.architecture.errors import LearnVLLMError, ServerError, ValidationError
from learnvllm.architecture.messages import RemoteError

ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
"""The last message of an engine that could not go on."""


OUTPUT_SOCKET_READY = b"OUTPUT_SOCKET_READY"
"""The first message on the output socket: both sockets are connected, so their files may go."""


class EngineCoreRequestType(Enum):
    """First frame of every message to the engine."""

    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x02"
    SHUTDOWN = b"\x03"


class UtilityCall(msgspec.Struct, array_like=True):
    """An out-of-band call of a method of the engine core; `call_id` finds its way back to a future."""

    call_id: int
    method: str
    args: list[Any]


class EngineReady(msgspec.Struct, array_like=True):
    """What a client must know of the engine it has just reached."""

    config_hash: str
    """EngineConfig.config_hash(): both sides must run the same configuration."""
    num_gpu_blocks: int
    """Blocks in the KV pool, block 0 (never handed out) included."""
    block_size: int
    kv_cache_tokens: int
    """Tokens a request can have in an otherwise empty pool; a longer prompt could never run."""
    engine_index: int = 0


class StartupFailed(msgspec.Struct, array_like=True):
    """Sent instead of READY when the engine cannot start."""

    error: RemoteError


def to_remote_error(error: BaseException) -> RemoteError:
    """Flatten an exception so that it can cross a process, whatever is in it."""
    if isinstance(error, ValidationError):
        value = error.value
        if not (value is None or (isinstance(value, bool | float | int) and abs(value) < 2**63)):
            value = _sendable(value if isinstance(value, str) else repr(value))
        return RemoteError(type(error).__name__, _sendable(error.message), error.parameter, value)
    return RemoteError(type(error).__name__, _sendable(str(error)))


def _sendable(text: str) -> str:
    """Lone surrogates have no place in UTF-8."""
    return text.encode(errors="replace").decode()


def from_remote_error(remote: RemoteError) -> LearnVLLMError:
    """Rebuild it with its own class; what is not one of ours becomes a ServerError that names the class."""
    cls = getattr(errors, remote.kind, None)
    if not (isinstance(cls, type) and issubclass(cls, LearnVLLMError)):
        return ServerError(f"{remote.kind}: {remote.message}")
    if issubclass(cls, ValidationError):
        return cls(remote.message, parameter=remote.parameter, value=remote.value)
    return cls(remote.message)
