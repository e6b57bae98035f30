"""Measures a server from outside: requests arrive as a Poisson process, and every token's arrival is noted.

Upstream namesakes: vllm/benchmarks/serve.py, vllm/benchmarks/lib/endpoint_request_func.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from learnvllm.architecture import envs
from learnvllm.architecture.errors import ServerError, ValidationError
from learnvllm.serving.bench_progress import Progress, Stage
from learnvllm.serving.bench_stats import Row, quantiles

if TYPE_CHECKING:
    import httpx


@dataclass
class Measured:
    """One request. Times are time.perf_counter() seconds."""

    num_input: int
    began: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    num_output: int = 0
    error: str | None = None


def measure_server(
    args: argparse.Namespace, requests: list[tuple[list[int], int]], progress: Progress
) -> list[Row]:
    """Send all requests and return the figures.

    Raises:
        ValidationError: nothing answers there.
        ServerError: every request failed.
    """
    results, elapsed = asyncio.run(_send_all(args, requests, progress))
    good = [r for r in results if r.error is None and r.chunk_times]
    if not good:
        raise ServerError(f"All {len(results)} requests failed. The first: {results[0].error}")
    to_first = [1000 * (r.chunk_times[0] - r.began) for r in good]
    per_token = [
        1000 * (r.chunk_times[-1] - r.chunk_times[0]) / (r.num_output - 1) for r in good if r.num_output > 1
    ]
    between = [1000 * (b - a) for r in good for a, b in zip(r.chunk_times, r.chunk_times[1:])]
    num_output = sum(r.num_output for r in good)
    return [
        ("successful requests", len(good), ""),
        ("failed requests", len(results) - len(good), ""),
        ("time", elapsed, "s"),
        ("request throughput", len(good) / elapsed, "req/s"),
        ("output token throughput", num_output / elapsed, "tok/s"),
        ("total token throughput", (num_output + sum(r.num_input for r in good)) / elapsed, "tok/s"),
        *quantiles("time to first token (TTFT)", to_first, "ms"),
        *quantiles("time per output token (TPOT)", per_token, "ms"),
        *quantiles("inter-token latency (ITL)", between, "ms"),
    ]


async def _send_all(
    args: argparse.Namespace, requests: list[tuple[list[int], int]], progress: Progress
) -> tuple[list[Measured], float]:
    """What came of each, and the seconds from the first one sent to the end of the last."""
    import httpx

    key = args.api_key or envs.get("LEARNVLLM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None)
    try:
        client = httpx.AsyncClient(base_url=args.base_url, headers=headers, timeout=None, limits=limits)
    except httpx.InvalidURL as error:
        raise ValidationError(f"--base-url {args.base_url}: {error}.", parameter="base_url") from None
    async with client:
        model = args.model or await _served_model(client, args.base_url)
        gate: contextlib.AbstractAsyncContextManager[object] = contextlib.nullcontext()
        if args.max_concurrency:
            gate = asyncio.Semaphore(args.max_concurrency)
        rng = random.Random(args.prompt_seed)
        tasks = []
        with progress.stage("Measuring", len(requests), "pieces of answers") as stage:
            began = time.perf_counter()
            for prompt, output_len in requests:
                tasks.append(asyncio.create_task(_send(client, gate, model, prompt, output_len, stage)))
                if args.request_rate != float("inf"):
                    await asyncio.sleep(rng.expovariate(args.request_rate))
            results = await asyncio.gather(*tasks)
            return list(results), time.perf_counter() - began


async def _served_model(client: httpx.AsyncClient, url: str) -> str:
    import httpx

    try:
        response = await client.get("/v1/models")
    except httpx.RequestError as error:
        raise ValidationError(
            f"No server answers at {url}: {error}. Start one with `learnvllm serve`.", parameter="base_url"
        ) from None
    try:
        if response.status_code != 200:
            raise ServerError(f"{url} refuses: {response.json()['error']['message']}")
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ValidationError(
            f"{url} does not speak the OpenAI API: {response.status_code} {response.text[:200]}",
            parameter="base_url",
        ) from None


async def _send(
    client: httpx.AsyncClient,
    gate: contextlib.AbstractAsyncContextManager[object],
    model: str,
    prompt: list[int],
    output_len: int,
    stage: Stage,
) -> Measured:
    import httpx

    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with gate:
        result = Measured(len(prompt), began=time.perf_counter())
        try:
            async with client.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    result.error = (await response.aread()).decode(errors="replace")
                    return result
                async for line in response.aiter_lines():
                    before = len(result.chunk_times)
                    _note(result, line)
                    stage.moves += len(result.chunk_times) - before
        except httpx.HTTPError as error:
            result.error = repr(error)
        finally:
            stage.finished += 1
        return result


def _note(result: Measured, line: str) -> None:
    if not line.startswith("data: ") or line == "data: [DONE]":
        return
    try:
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            result.error = event["error"]["message"]
        elif event.get("usage"):
            result.num_output = event["usage"]["completion_tokens"]
        elif event["choices"]:
            result.chunk_times.append(time.perf_counter())
    except (ValueError, LookupError, TypeError, AttributeError):
        result.error = f"The server sent something that is no piece of a completion: {line[:200]}"
