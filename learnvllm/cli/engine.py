"""serve, chat, generate and bench: from their flags to the engine that they run.

Nothing is imported before a command asks for it. Upstream namesakes: vllm/entrypoints/cli/{serve,openai}.py,
vllm/benchmarks.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from learnvllm.engine_core.arg_utils import EngineArgs
    from learnvllm.engine_core.llm_engine import LLMEngine

GENERATE_MAX_TOKENS = 128

# ------------------------------------------------------------------------------------------ shared flags


def _add_engine_flags(parser: argparse.ArgumentParser, positional_model: bool = True) -> None:
    from learnvllm.engine_core.arg_utils import EngineArgs

    if positional_model:
        parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="Same as --model.")
    EngineArgs.add_cli_args(parser)
    add = parser.add_argument_group("your code").add_argument
    add(
        "--mine",
        nargs="?",
        const="passed",
        action="append",
        metavar="passed|all|ID,ID",
        help="Run your exercises in place of the reference's code. Alone: those that passed. Repeatable.",
    )
    add(
        "--shadow",
        action="store_true",
        help="Run the reference beside your code, step by step, and stop where they first differ.",
    )


def _use_my_code(args: argparse.Namespace) -> None:
    """Before anything of the engine is imported that need not be. The banner goes where logs go."""
    if not (args.mine or args.shadow):
        return
    import sys

    from learnvllm.architecture.errors import ConfigError
    from learnvllm.study import overlay

    print(overlay.activate(args.mine or ["passed"], shadow=args.shadow), file=sys.stderr, flush=True)
    if args.cpu_kernels == "numba" and overlay.needs_torch_kernels():
        raise ConfigError(
            "--cpu-kernels numba would pass your attention by: leave it out with --mine.",
            parameter="cpu_kernels",
            value="numba",
        )


def _engine_args(args: argparse.Namespace, **overrides: Any) -> EngineArgs:
    from dataclasses import replace

    from learnvllm.architecture.errors import ConfigError
    from learnvllm.engine_core.arg_utils import EngineArgs

    tag = getattr(args, "model_tag", None)
    if tag is not None:
        if args.model not in (None, tag):
            raise ConfigError(f"Two models are named: {tag} and --model {args.model}.", parameter="model")
        args.model = tag
    return replace(EngineArgs.from_cli_args(args), **overrides)


def _build_llm_engine(args: argparse.Namespace) -> LLMEngine:
    _use_my_code(args)
    return _load_llm_engine(args)


def _load_llm_engine(args: argparse.Namespace) -> LLMEngine:
    from learnvllm import assembly

    if args.prefill_tokens_per_decode is None:  # as LLM: nobody watches single tokens of many requests
        args.prefill_tokens_per_decode = 0
    return assembly.build_llm_engine(
        assembly.create_engine_config(_engine_args(args, disable_log_stats=True))
    )


# Sampling flags: name -> (type, help). They are fields of requests, and checked there.
_SAMPLING_FLAGS: dict[str, tuple[type, str]] = {
    "max_tokens": (int, "Most tokens of an answer."),
    "temperature": (float, "0 always takes the most likely token."),
    "top_p": (float, "Choose among the most likely tokens that make up this share."),
    "top_k": (int, "Choose among this many most likely tokens."),
    "min_p": (float, "Drop tokens less likely than this share of the most likely one."),
    "repetition_penalty": (float, "Above 1: discourage tokens that occurred, in the prompt too."),
    "presence_penalty": (float, "Above 0: discourage tokens that occurred in the answer."),
    "frequency_penalty": (float, "The same, growing with every occurrence."),
}


def _add_sampling_flags(parser: argparse.ArgumentParser, defaults: dict[str, Any]) -> None:
    """`defaults`: those that are not SamplingParams', for the help; nothing is sent that was not said."""
    from learnvllm.architecture.sampling_params import SamplingParams

    group = parser.add_argument_group("sampling")
    usual = SamplingParams()
    for name, (kind, help) in _SAMPLING_FLAGS.items():
        shown = f"{help} (default: {defaults.get(name, getattr(usual, name))})"
        flag, metavar = "--" + name.replace("_", "-"), kind.__name__.upper()
        group.add_argument(flag, type=kind, metavar=metavar, help=shown)
    group.add_argument(
        "--sampling-seed", type=int, metavar="INT", help="The same answers every time; without it, they vary."
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="Stop before this text. Repeatable.")


def _sampling_values(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling flags that were given, by the names of request fields."""
    values = {name: getattr(args, name) for name in (*_SAMPLING_FLAGS, "stop")}
    values["seed"] = args.sampling_seed
    return {name: value for name, value in values.items() if value is not None}


# ------------------------------------------------------------------------------------------------- serve


def _json_list(text: str) -> list[str]:
    import json

    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON list of strings, like '[\"*\"]'")
    return value


def configure_serve(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    add = group.add_argument
    add("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all (default: %(default)s)")
    add("--port", type=int, default=8000, help="Port; 0 takes a free one (default: %(default)s)")
    # append, not vLLM's nargs="+": that would take a MODEL behind it for one more key.
    add(
        "--api-key",
        action="append",
        metavar="KEY",
        help="Required on all but /health. Repeatable: any opens.",
    )
    add("--chat-template", metavar="FILE", help="Jinja file, or its text, instead of the model's template.")
    for flag in ("--allowed-origins", "--allowed-methods", "--allowed-headers"):
        add(flag, type=_json_list, default=["*"], metavar="JSON", help="CORS (default: %(default)s)")
    add("--allow-credentials", action="store_true", help="CORS: allow cookies and the like.")
    add(
        "--shutdown-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="Seconds for running requests to finish (default: %(default)g)",
    )
    levels = ("debug", "info", "warning", "error", "critical")
    add("--uvicorn-log-level", default="info", choices=levels, help="(default: %(default)s)")
    add("--disable-uvicorn-access-log", action="store_true", help="No log line per request.")
    _add_engine_flags(parser)


def run_serve(args: argparse.Namespace) -> int:
    from functools import partial

    _use_my_code(args)
    from learnvllm import assembly
    from learnvllm.architecture import envs
    from learnvllm.serving import launcher
    from learnvllm.serving.options import CorsOptions, ServeOptions, read_chat_template

    key = envs.get("LEARNVLLM_API_KEY")
    options = ServeOptions(
        host=args.host,
        port=args.port,
        api_keys=args.api_key or ([] if key is None else [key]),
        cors=CorsOptions(
            args.allowed_origins, args.allowed_methods, args.allowed_headers, args.allow_credentials
        ),
        chat_template=read_chat_template(args.chat_template),
        shutdown_timeout=args.shutdown_timeout,
        log_level=args.uvicorn_log_level,
        access_log=not args.disable_uvicorn_access_log,
    )
    with launcher.bind(options.host, options.port) as sock:  # before the model loads
        config = assembly.create_engine_config(_engine_args(args))
        return launcher.serve(options, partial(assembly.build_async_llm, config), sock)


# --------------------------------------------------------------------------------------- generate, chat


def configure_generate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompts", nargs="*", metavar="PROMPT", help="Texts to continue. None: one prompt from stdin.")
    add("--file", metavar="FILE", help="Read prompts from a file, one a line.")
    add("--chat", action="store_true", help="Put each prompt into the model's chat template.")
    add("--n", type=int, help="Continuations of each prompt. (default: 1)")
    add("--logprobs", type=int, help="Log-probabilities of this many candidates per token; with --json.")
    add("--ignore-eos", action="store_true", help="Go on to --max-tokens.")
    add("--json", action="store_true", help="One JSON object per prompt and line, as they finish.")
    _add_sampling_flags(parser, {"max_tokens": GENERATE_MAX_TOKENS})
    _add_engine_flags(parser, positional_model=False)


def run_generate(args: argparse.Namespace) -> int:
    from learnvllm.serving import generate

    values = _sampling_values(args)
    values |= {name: v for name in ("n", "ignore_eos") if (v := getattr(args, name)) is not None}
    max_tokens = values.pop("max_tokens", GENERATE_MAX_TOKENS)
    params = generate.make_params(values, max_tokens=max_tokens, logprobs=args.logprobs, stream=not args.json)
    prompts = generate.read_prompts(args.prompts, args.file)
    engine = _build_llm_engine(args)
    try:
        return generate.run(engine, prompts, params, chat=args.chat, as_json=args.json)
    finally:
        engine.shutdown()


def configure_chat(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", help="Talk to a running server, e.g. http://127.0.0.1:8000, instead of starting an engine.")
    add("--api-key", metavar="KEY", help="For --url (default: LEARNVLLM_API_KEY).")
    add("--system", "--system-prompt", dest="system", metavar="TEXT", help="The system message.")
    add("--plain", action="store_true", help="Show text as it is, without rendering Markdown.")
    from learnvllm.serving.chat import DEFAULT_PARAMS

    _add_sampling_flags(parser, {"max_tokens": "what fits into the context", **DEFAULT_PARAMS})
    _add_engine_flags(parser)


def run_chat(args: argparse.Namespace) -> int:
    from learnvllm.architecture import envs
    from learnvllm.architecture.errors import ValidationError
    from learnvllm.serving import chat, chat_backends

    values = {**chat.DEFAULT_PARAMS, **_sampling_values(args)}
    chat.check_params(values)
    backend: chat_backends.ChatBackend
    if args.url is not None:
        if args.mine or args.shadow:
            raise ValidationError("--mine and --shadow belong to the server: learnvllm serve --mine.")
        key = args.api_key or envs.get("LEARNVLLM_API_KEY")
        backend = chat_backends.HttpBackend(args.url, key, args.model or args.model_tag)
    else:
        chat.say_starting()
        backend = chat_backends.EngineBackend(_build_llm_engine(args))
    try:
        return chat.run(backend, values, args.system, plain=args.plain)
    finally:
        backend.close()


# ------------------------------------------------------------------------------------------------- bench


def configure_bench(parser: argparse.ArgumentParser) -> None:
    from learnvllm.serving import bench

    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, bench.EXAMPLES))
    lines = [f"  {example:<{width}}  # {what}" for example, what in bench.EXAMPLES.items()]
    parser.epilog = "\n".join(["examples:", *lines])
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True, prog=parser.prog)
    for kind, help in bench.KINDS.items():
        sub = kinds.add_parser(kind, help=help, description=help, usage=f"learnvllm bench {kind} [flags]")
        bench.add_flags(sub, kind)
        if kind != "serve":
            _add_engine_flags(sub)


def run_bench(args: argparse.Namespace) -> int:
    from learnvllm.serving import bench
    from learnvllm.serving.bench_progress import Progress

    bench.check_flags(args)
    progress = Progress(quiet=args.json)
    if args.kind == "serve":
        return bench.run_serve(args, progress)
    _use_my_code(args)
    with progress.stage(bench.LOADING):
        engine = _load_llm_engine(args)
    measure = bench.run_throughput if args.kind == "throughput" else bench.run_latency
    try:
        with _benchmark_recorded(args):
            return measure(engine, args, progress)
    finally:
        engine.shutdown()


def _benchmark_recorded(args: argparse.Namespace) -> AbstractContextManager[None]:
    from learnvllm.study import overlay_bench

    return overlay_bench.recording(args)
