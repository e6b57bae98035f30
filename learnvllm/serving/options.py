"""Flags of `learnvllm serve` that concern HTTP, not the engine. Their names are vLLM's.

So are the defaults, but for three: vLLM listens on every address (`host`), lets no page of another origin in
(`allowed_origins`), and aborts what runs when it is stopped (`shutdown_timeout` 0, vllm/config/vllm.py).
Upstream namesake: vllm/entrypoints/common/cli_args.py (FrontendArgs).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.text import to_path


@dataclass(frozen=True)
class CorsOptions:
    """Which web pages may call this server."""

    allowed_origins: list[str] = field(default_factory=lambda: ["*"])
    allowed_methods: list[str] = field(default_factory=lambda: ["*"])
    allowed_headers: list[str] = field(default_factory=lambda: ["*"])
    allow_credentials: bool = False

    def __post_init__(self) -> None:
        for name in ("allowed_origins", "allowed_methods", "allowed_headers"):
            value = getattr(self, name)
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ConfigError(
                    f'{name}={value!r}: must be a JSON list of strings, like ["*"].',
                    parameter=name,
                    value=value,
                )


@dataclass(frozen=True)
class ServeOptions:
    """Where to listen, who may call, how to stop."""

    host: str = "127.0.0.1"
    """Only this machine, unless asked otherwise."""
    port: int = 8000
    """0 takes a free one."""
    api_keys: list[str] = field(default_factory=list)
    cors: CorsOptions = field(default_factory=CorsOptions)
    chat_template: str | None = None
    """Jinja source instead of the model's own."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests may take to finish after SIGTERM or SIGINT."""
    log_level: str = "info"
    access_log: bool = True

    def __post_init__(self) -> None:
        if not self.host.strip():
            raise ConfigError(
                "The host is empty. Give --host an address of this machine, or 0.0.0.0 for all.",
                parameter="host",
                value=self.host,
            )
        if not all(key.strip() for key in self.api_keys):
            raise ConfigError(
                "The API key is empty. Give one with --api-key or LEARNVLLM_API_KEY, or unset both for a "
                "server without a key.",
                parameter="api_key",
            )
        if not self.shutdown_timeout >= 0:
            raise ConfigError(
                f"shutdown_timeout={self.shutdown_timeout}: must be 0 or above.",
                parameter="shutdown_timeout",
                value=self.shutdown_timeout,
            )


def read_chat_template(file_or_source: str | None) -> str | None:
    """The text of a template file; what has Jinja in it is taken for the template itself.

    Raises:
        ConfigError: it is neither.
    """
    if file_or_source is None:
        return None
    if "{{" in file_or_source or "{%" in file_or_source:
        return file_or_source
    try:
        return to_path(file_or_source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--chat-template {file_or_source} cannot be read: {error}. Give a Jinja file, or its text.",
            parameter="chat_template",
            value=file_or_source,
        ) from None
