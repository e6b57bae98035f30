"""The command line: fast help, one-line errors, and every command from its flags to its output."""

from __future__ import annotations

import http.server
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from learnvllm import __version__, cli
from learnvllm.architecture.errors import (
    EngineDeadError,
    LearnVLLMError,
    QueueFullError,
    ServerError,
    ValidationError,
)
from learnvllm.architecture.outputs import CompletionOutput, RequestOutput
from learnvllm.cli import engine as engine_commands
from learnvllm.cli import tools
from learnvllm.engine_core.llm_engine import LLMEngine
from learnvllm.serving import bench, bench_progress, chat, chat_backends
from learnvllm.serving.bench_progress import Progress, Stage
from learnvllm.serving.bench_stats import percentile
from learnvllm.serving.chat_view import ChatView, split_blocks
from learnvllm.serving.generate import _TextPrinter, read_prompts
from learnvllm.serving.options import ServeOptions
from tests.serving.fake_server import FakeServer, running_fake_server

FLAGS = ["--num-gpu-blocks-override", "64", "--dtype", "float32", "--num-threads", "1", "--temperature", "0"]


def run(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "learnvllm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **kwargs)


# ------------------------------------------------------------------------------------------ help, errors


def test_help_loads_next_to_nothing() -> None:
    program = (
        "import sys; from learnvllm import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'fastapi', 'msgspec', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([command, "--help"])
    assert left.value.code == 0
    assert cli.COMMANDS[command].help in capsys.readouterr().out


def test_serves_flags_are_vllms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    shown = capsys.readouterr().out
    for flag in (
        "--model", "--host", "--port", "--api-key", "--max-model-len", "--max-num-seqs",
        "--max-num-batched-tokens",
        "--gpu-memory-utilization", "--block-size", "--enable-prefix-caching", "--no-enable-prefix-caching",
        "--dtype", "--seed", "--tensor-parallel-size", "--served-model-name", "--chat-template",
        "--allowed-origins", "--shutdown-timeout", "--max-num-queued-reqs", "--async-scheduling",
    ):  # fmt: skip
        assert flag in shown


@pytest.mark.parametrize("command", ["generate", "chat", "serve"])
def test_help_says_the_default_of_every_number(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for flag in engine_commands._SAMPLING_FLAGS if command != "serve" else ("shutdown_timeout", "port"):
        text = shown[shown.index(f"--{flag.replace('_', '-')} ") :]
        assert "(default: " in text[: text.index(" --", 2)], flag


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--tensor-parallel-size", "2", "--port", "0"], "tensor_parallel_size=2"),
        (["serve", "/no/such/model", "--port", "0"], "/no/such/model"),
        (["serve", "one", "--model", "two", "--port", "0"], "Two models"),
        (["serve", "--chat-template", "/no/such/file"], "/no/such/file"),
        (["serve", "--shutdown-timeout", "-1"], "shutdown_timeout"),
        (["serve", "--api-key", ""], "API key is empty"),
        (["generate", "hello", "--temperature", "-1"], "temperature=-1.0"),
        (["generate", "hello", "--max-tokens", "0"], "max_tokens=0"),
        (["generate", "--file", "/no/such/file"], "/no/such/file"),
        (["generate", ""], "no prompt"),
        (["chat", "--top-p", "2"], "top_p=2.0"),
        (["chat", "--url", "http://127.0.0.1:9"], "learnvllm serve"),
        (["chat", "--url", "nonsense"], "nonsense"),
        (["bench", "throughput", "--num-prompts", "0"], "--num-prompts 0"),
        (["bench", "serve", "--request-rate", "0"], "--request-rate 0"),
        (["bench", "serve", "--base-url", "http://127.0.0.1:9"], "learnvllm serve"),
        (["bench", "serve", "--vocab-size", "10"], "--vocab-size 10"),
        (["bench", "throughput", "--output-json", "/no/such/file"], "/no/such/file"),
        (["bench", "throughput", "--output-json", "~no-such-user/file"], "home directory"),
        (["bench", "latency", "--num-iters-warmup", "-1"], "--num-iters-warmup -1"),
        (["bench", "serve", "--base-url", "http://a:b"], "--base-url"),
        (["chat", "--url", "http://a:b"], "http://a:b"),
        (["models", "path", "no-such-model"], "no-such-model"),
        (["models", "path", ""], "name is empty"),
        (["models", "path", "~no-such-user/m"], "home directory"),
        (["serve", "~no-such-user/m", "--port", "0"], "home directory"),
        (["serve", "--chat-template", "~no-such-user/t", "--port", "0"], "home directory"),
        (["generate", "--file", "~no-such-user/f"], "home directory"),
        (["serve", "--trace-file=~no-such-user/f", "--port", "0"], "home directory"),
        (["generate", "\udcff"], "not valid UTF-8"),
        (["generate", "hello", "--chat", "--stop", "\udcff"], "not valid UTF-8"),
        (["serve", "--port", "0", "--api-key", "a\udcff"], "'a\\udcff' is not valid UTF-8"),
        (["serve", "--port", "0", "--served-model-name=\udcff"], "not valid UTF-8"),
        (["serve", "--port", "0", "--prefix-caching-hash-seed", "\udcff"], "not valid UTF-8"),
        (["serve", "--port", "0", ""], "name is empty"),
        (["serve", "--port", "0", "--model", " "], "name is empty"),
        (["serve", "--host", "", "--port", "0"], "host is empty"),
        (["serve", "--host", "a" * 100, "--port", "0"], "--host"),
        (["serve", "--port", "70000"], "0-65535. Check"),
        (["generate", "hello", "--max-num-seqs", "99999999999"], "max_num_seqs=99999999999"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_an_error_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith(f"learnvllm {arguments[0]}: ")
    assert says in captured.err


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("said", [b"\xff", b"Hi \xc3"])
def test_input_that_is_no_text_is_one_line(command: str, said: bytes, tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8:surrogateescape"):  # as a UTF-8 locale has it, and as POSIX's
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        (tmp_path / "said").write_bytes(said)
        with (tmp_path / "said").open("rb") as stdin:
            program = (
                "import sys\n"
                "from learnvllm import cli\n"
                "from learnvllm.cli import engine\n"
                "from learnvllm.serving.chat_view import ChatView\n"
                "if sys.argv[1] == 'generate': sys.exit(cli.main(['generate']))\n"
                "engine.run_chat = lambda args: print(ChatView(plain=True, history=None).read()) or 0\n"
                "sys.exit(cli.main(['chat']))"
            )
            result = subprocess.run(
                [sys.executable, "-c", program, command],
                stdin=stdin, env=environment, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
        assert result.returncode == 2, result.stderr
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"learnvllm {command}: ")


def test_what_the_terminal_cannot_show_is_written_with_escapes() -> None:
    environment = {**os.environ, "LEARNVLLM_\udcff": "1", "PYTHONIOENCODING": "ascii"}
    result = run("env", env=environment)
    assert result.returncode == 0, result.stderr
    assert "LEARNVLLM_\\udcff  is set, but there is no such variable" in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux")
@pytest.mark.parametrize("arguments", [["env"], ["env", "--json"], ["version"], ["models"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "learnvllm", *arguments]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == "learnvllm: the output cannot be written: No space left on device.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--port"],
        ["generate", "--max-tokens", "x"],
        ["chat", "--no-such-flag"],
        ["bench", "throughput", "--num-prompts", "x"],
        ["bench", "nothing"],
        ["models", "nothing"],
        ["models", "pull", "one", "two"],
        ["dev", "check", "--budget", "x"],
        ["day", "x"],
        ["env", "extra"],
    ],
    ids=" ".join,
)
def test_a_wrong_flag_names_the_command_and_not_its_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    name, _, _ = line.partition(": error: ")
    assert name in ("learnvllm", f"learnvllm {arguments[0]}", f"learnvllm {arguments[0]} {arguments[1]}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "serve --prot 8123",
            "learnvllm serve: --prot (did you mean --port?)",
        ),
        ("check --wach", "learnvllm check: --wach (did you mean --watch?)"),
        (
            "bench latency --batch-sise=3",
            "learnvllm bench latency: --batch-sise=3 (did you mean --batch-size?)",
        ),
        ("env --zzz", "learnvllm env: --zzz"),
    ],
)
def test_a_wrong_flag_comes_with_the_right_one(line: str, message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(line.split())
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith(f"usage: {message.partition(':')[0]} ")
    assert error == message.replace(": ", ": error: unrecognized arguments: ", 1)


@pytest.mark.parametrize(
    ("line", "told"), [("chek", ": did you mean `learnvllm check`?"), ("zzz", ". `learnvllm --help` lists")]
)
def test_a_wrong_command_comes_with_the_right_one(line: str, told: str, capsys: Any) -> None:
    """In one line, not below a list of twenty."""
    with pytest.raises(SystemExit) as ended:
        cli.main([line])
    assert ended.value.code == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"learnvllm: there is no command '{line}'{told}")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNVLLM_LOG_LEVEL", "DEBUG")
    with pytest.raises(Exception, match="temperature"):
        cli.main(["generate", "hello", "--temperature", "-1"])


def test_an_empty_key_in_the_environment_does_not_open_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNVLLM_API_KEY", "")
    assert cli.main(["serve", "--port", "0"]) == 2


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert cli.main(["chat", "--url", "http://127.0.0.1:9"]) == 2
    assert "pip install httpx" in capsys.readouterr().err


LEARN_LINES = [
    *("check nope", "check free_queue", "hint", "solution free_queue", "reset free_queue", "update"),
    *("day 9", "next", "progress", "quiz 1", "journal 1", "notebook 1", "dev check"),
]


def test_every_command_of_the_learners_names_a_package_that_is_missing(tmp_path: Path) -> None:
    """After `make serve` alone there is none of the companion's packages."""
    code = f"""
import sys
from learnvllm import cli
sys.modules.update(dict.fromkeys({cli._STUDY_PACKAGES}))
for line in {LEARN_LINES}:
    print(line, file=sys.stderr)
    assert cli.main(line.split()) in (0, 1, 2)
"""
    environ = {**os.environ, "LEARNVLLM_STUDY_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    said = dict(zip(lines := done.stderr.splitlines(), [*lines[1:], ""]))
    for line in LEARN_LINES:
        assert "is missing. Install it: make setup, or python -m pip install -c constraints.txt" in said[line]


def test_ctrl_c_anywhere_is_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(args: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(tools, "run_version", interrupted)
    assert cli.main(["version"]) == 130
    assert capsys.readouterr().err == ""


def test_version_env_and_models(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"learnvllm {__version__}\n"
    monkeypatch.delenv("LEARNVLLM_LOG_LEVEL", raising=False)
    monkeypatch.setenv("LEARNVLLM_API_KEY", "very secret")
    assert cli.main(["env"]) == 0
    shown = capsys.readouterr().out
    assert "LEARNVLLM_KV_CACHE_SPACE_GIB" in shown
    assert "very secret" not in shown
    assert cli.main(["env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["learnvllm"] == __version__
    assert "LEARNVLLM_LOG_LEVEL  (not set" in shown
    monkeypatch.setenv("LEARNVLLM_MODEL_RUNNER", "fast")
    assert cli.main(["env"]) == 0
    assert "model runner: (LEARNVLLM_MODEL_RUNNER='fast'" in capsys.readouterr().out
    for command in (["models"], ["models", "list"]):
        assert cli.main(command) == 0
        assert "smollm2-135m-instruct" in capsys.readouterr().out


def test_a_model_behind_the_key_is_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from learnvllm import assembly
    from learnvllm.serving import launcher

    seen: dict[str, Any] = {}

    def serve(options: ServeOptions, *_: Any) -> int:
        seen["keys"] = options.api_keys
        return 0

    monkeypatch.setattr(assembly, "create_engine_config", lambda args: seen.update(model=args.model))
    monkeypatch.setattr(launcher, "serve", serve)
    assert cli.main(["serve", "--port", "0", "--api-key", "one", "--api-key", "two", "my-model"]) == 0
    assert seen == {"model": "my-model", "keys": ["one", "two"]}


def test_the_path_of_a_model_that_is_not_here_fetches_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEARNVLLM_HOME", str(tmp_path))
    assert cli.main(["models", "path"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "learnvllm models: smollm2-135m-instruct is not on this machine. "
        "Fetch it with `learnvllm models pull`."
    ]
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["models", "path", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


# ---------------------------------------------------------------------------------------------- generate


def test_no_character_is_lost_when_the_first_piece_has_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    printer = _TextPrinter(["a", "b"], n=1)
    for index, text, reason in ((0, "", None), (0, "Hello", None), (0, " world", "stop"), (1, "", "stop")):
        completion = CompletionOutput(index=0, text=text, token_ids=[1], finish_reason=reason)
        printer.add(index, RequestOutput("id", None, [1], [completion], finished=reason is not None))
    printer.end()
    assert capsys.readouterr().out == "\n--- 'a'\nHello world\n\n--- 'b'\n\n"


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("flag", ["--kv-cache-memory-bytes", "--num-gpu-blocks-override"])
@pytest.mark.parametrize("number", [10**17, 10**19, 10**40])
def test_a_cache_that_no_machine_holds_is_one_line(
    model: str, flag: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", "hello", "--model", model, "--num-threads", "1", flag, str(number)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No memory for" in line


@pytest.mark.usefixtures("in_process")
def test_sampling_varies_unless_it_is_seeded(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answers(*command: str, said: str = "") -> set[str]:
        texts = set()
        for _ in range(2):
            monkeypatch.setattr(sys, "stdin", io.StringIO(said))
            assert cli.main([*command, "--model", model, "--max-tokens", "16", *FLAGS[:-2]]) == 0
            texts.add(capsys.readouterr().out)
        return texts

    assert len(answers("generate", "hello")) == 2
    assert len(answers("generate", "hello", "--sampling-seed", "1")) == 1
    warm = ("--temperature", "1", "--top-p", "1")
    assert len(answers("chat", *warm, said="hello\n")) == 2
    assert len(answers("chat", *warm, "--sampling-seed", "1", said="hello\n")) == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.model_layers.tiny_models import make_tiny_model

    return str(make_tiny_model("llama", tmp_path_factory.mktemp("model"))[0])


@pytest.fixture(scope="module")
def fake_server() -> Iterator[FakeServer]:
    with running_fake_server() as server:
        yield server


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine core in this process: nothing to start."""
    monkeypatch.setenv("LEARNVLLM_ENABLE_MULTIPROCESSING", "0")


@pytest.mark.usefixtures("in_process")
def test_generate_prints_text_json_and_several(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    common = ["--model", model, "--max-tokens", "8", *FLAGS]
    assert cli.main(["generate", "hello", *common]) == 0
    text = capsys.readouterr().out
    assert cli.main(["generate", "hello", "--json", "--logprobs", "1", *common]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["prompt"] == "hello"
    assert line["outputs"][0]["text"] + "\n" == text
    assert len(line["outputs"][0]["token_ids"]) == len(line["outputs"][0]["logprobs"]) == 8
    prompts = tmp_path / "prompts"
    prompts.write_text("one\n\nhello\n", encoding="utf-8")
    assert cli.main(["generate", "--file", str(prompts), "--n", "2", *common]) == 0
    many = capsys.readouterr().out
    assert many.count("--- 'one'") == many.count("--- 'hello'") == 2
    assert text in many


def test_prompts_come_from_arguments_a_file_or_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_prompts(["a", "b"], None) == ["a", "b"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    assert read_prompts([], None) == ["one\ntwo\n"]


def test_generate_starts_an_engine_process_and_ends_with_it(model: str) -> None:
    result = run("generate", "--model", model, "--max-tokens", "4", *FLAGS, input="hello")
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert result.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_while_generating_is_clean(model: str) -> None:
    command = [sys.executable, "-m", "learnvllm", "generate", "hello", "--model", model, *FLAGS]
    process = subprocess.Popen(
        [*command, "--max-tokens", "900", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the engine's process, too
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == b""


# -------------------------------------------------------------------------------------------------- chat


class ScriptedBackend:
    """Answers with the words it was given, each as long as two tokens; a None among them is Ctrl-C."""

    model = "scripted"

    def __init__(self, *words: str | LearnVLLMError | None) -> None:
        self.words = words
        self.asked: list[tuple[list[dict[str, str]], dict[str, Any]]] = []
        self.stopped = 0

    def stream(self, messages: list[dict[str, str]], params: dict[str, Any]) -> Iterator[chat_backends.Piece]:
        self.asked.append((list(messages), dict(params)))
        try:
            for i, word in enumerate(self.words):
                if word is None:
                    raise KeyboardInterrupt
                if isinstance(word, LearnVLLMError):
                    raise word
                yield chat_backends.Piece(word, 2 * i + 2)
        finally:
            self.stopped += 1

    def close(self) -> None:
        pass


def converse(backend: ScriptedBackend, text: str, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code = chat.run(backend, kwargs.get("params", {}), kwargs.get("system"), plain=True)
    assert code == kwargs.get("code", 0)


def test_a_chat_keeps_its_turns_until_reset(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    backend = ScriptedBackend("all ", "right")
    converse(backend, "one\n\ntwo\n/reset\nthree\n", monkeypatch, system="be brief")
    system = {"role": "system", "content": "be brief"}
    one, answer = {"role": "user", "content": "one"}, {"role": "assistant", "content": "all right"}
    assert [messages for messages, _ in backend.asked] == [
        [system, one],
        [system, one, answer, {"role": "user", "content": "two"}],
        [system, {"role": "user", "content": "three"}],
    ]
    assert capsys.readouterr().out == "all right\n" * 3


def test_commands_change_parameters_and_the_system_message(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    backend = ScriptedBackend("ok")
    setting = '/params temperature=0.5 stop=["x"]\n/system talk\nhi\n'
    script = setting + "/params temperature= top_p=9\nhi\n/what\n/quit\nno\n"
    converse(backend, script, monkeypatch, params={"seed": 1})
    assert len(backend.asked) == 2
    for messages, params in backend.asked:  # the bad second /params changed nothing
        assert params == {"seed": 1, "temperature": 0.5, "stop": ["x"]}
        assert messages[0] == {"role": "system", "content": "talk"}
    errors = capsys.readouterr().err
    assert "top_p=9" in errors
    assert "/what" in errors


@pytest.mark.parametrize("word", ["exit", "quit", "/exit"])
def test_a_word_that_leaves_a_shell_leaves_the_chat(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend("ok")
    converse(backend, f"one\n{word}\ntwo\n", monkeypatch)
    assert len(backend.asked) == 1


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend("half ", "an ", None, "answer")
    converse(backend, "one\ntwo\n", monkeypatch)
    assert backend.stopped == 2
    assert backend.asked[1][0][1] == {"role": "assistant", "content": "half an "}


def test_a_turn_stopped_before_the_first_word_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend("", None)
    converse(backend, "one\ntwo\n", monkeypatch)
    assert [messages for messages, _ in backend.asked] == [
        [{"role": "user", "content": "one"}],
        [{"role": "user", "content": "two"}],
    ]


@pytest.mark.parametrize("error", [QueueFullError("full"), ServerError("broken"), ValidationError("long")])
def test_a_turn_that_fails_is_forgotten_and_the_chat_goes_on(
    error: LearnVLLMError, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    backend = ScriptedBackend("half", error)
    converse(backend, "one\ntwo\n", monkeypatch, code=1)
    assert [len(messages) for messages, _ in backend.asked] == [1, 1]
    assert capsys.readouterr().err.count(str(error)) == 2


def test_only_a_dead_engine_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend(EngineDeadError("gone"))
    converse(backend, "one\ntwo\n", monkeypatch, code=1)
    assert len(backend.asked) == 1


def test_the_speed_of_an_answer_counts_tokens_not_pieces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    view = ChatView(plain=True, history=tmp_path / "history")
    notes: list[str] = []
    monkeypatch.setattr(view, "note", notes.append)
    view.stats(11, 0.25, 0.5, interrupted=False)
    view.stats(None, 0.25, 0.5, interrupted=True)
    assert notes == ["(first token after 250 ms, 20 tokens/s)", "(stopped; first token after 250 ms)"]
    view.stats(2, 0.25, 3.0, interrupted=False)
    assert "0.333 tokens/s" in notes[-1]
    counted: list[Any] = []
    monkeypatch.setattr(view, "stats", lambda *args: counted.append(args[0]))
    chat.Conversation(ScriptedBackend("a ", "b ", "c"), {}, None, view).ask("hello")
    assert counted == [6]


def test_what_the_chat_sets_itself_cannot_be_set() -> None:
    for params in ({"stream": False}, {"messages": []}, {"model": "x"}, {"n": 2}):
        with pytest.raises(ValidationError, match=next(iter(params))):
            chat.check_params(params)
    chat.check_params({"n": 1, "top_k": 3})


@pytest.mark.usefixtures("in_process")
def test_an_answer_that_the_engine_failed_on_is_no_success(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = LLMEngine.step

    def fails(engine: LLMEngine) -> list[RequestOutput]:
        outputs = step(engine)
        for output in outputs:
            if output.finished:
                output.outputs[0].finish_reason = "error"
        return outputs

    monkeypatch.setattr(LLMEngine, "step", fails)
    flags = ["--model", model, *FLAGS]
    assert cli.main(["generate", "hello", "--max-tokens", "4", *flags]) == 1
    assert "the engine failed on 'hello'; its log says why." in capsys.readouterr().err
    assert cli.main(["bench", "throughput", "--num-prompts", "1", "--output-len", "4", *flags[:-2]]) == 2
    assert "The engine failed on this request" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_chat_with_an_engine_of_its_own(model: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n" + "x" * 5000 + "\nhello\n"))
    assert cli.main(["chat", "--model", model, "--max-tokens", "6", *FLAGS]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.strip()) > 3
    assert "/reset" in captured.err  # the long message was refused, and the chat went on


def test_chat_with_a_server(fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert cli.main(["chat", "--url", fake_server.url, "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out == " the world of\n"
    backend = chat_backends.HttpBackend(fake_server.url, None, None)
    pieces = list(backend.stream([{"role": "user", "content": "hello"}], {"max_tokens": 3}))
    backend.close()
    assert "".join(piece.text for piece in pieces) == " the world of"
    assert pieces[-1].num_tokens == 3


class Odd(http.server.BaseHTTPRequestHandler):
    """A server that wants a key we lack, or that streams what is no chat."""

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        locked = self.path.startswith("/locked")
        error = {"error": {"message": "Who are you?"}}
        self.answer(401 if locked else 200, json.dumps(error if locked else {"data": [{"id": "m"}]}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, 'data: {"not": "ours"}\n\n')

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture(scope="module")
def odd_url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", [["chat", "--url"], ["bench", "serve", "--base-url"]])
def test_a_refusal_of_the_server_is_told_in_its_words(command: list[str], odd_url: str, capsys: Any) -> None:
    assert cli.main([*command, f"{odd_url}/locked"]) == 2
    error = capsys.readouterr().err
    assert "Who are you?" in error
    assert "OpenAI API" not in error
    assert "learnvllm serve" not in error


def test_a_server_that_sends_something_else_is_an_error(
    odd_url: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert cli.main(["chat", "--url", odd_url]) == 1
    assert "no piece of a chat" in capsys.readouterr().err
    assert cli.main(["bench", "serve", "--base-url", odd_url, "--num-prompts", "1"]) == 2
    assert "no piece of a completion" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_on_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves(
    fake_server: FakeServer,
    tmp_path: Path,
) -> None:
    import pty

    fake_server.engine.token_seconds = 0.05
    fake_server.engine.aborted.clear()
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "learnvllm", "chat", "--url", fake_server.url, "--max-tokens", "200"]
    env = {**os.environ, "LEARNVLLM_HOME": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=env, start_new_session=True
    )
    os.close(inside)
    seen = ""

    def wait_for(text: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < deadline, f"{text!r} is not in {seen!r}"
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 4096).decode(errors="replace")
        seen = seen[seen.index(text) + len(text) :]

    try:
        wait_for(">")
        os.write(terminal, b"hello\r")
        wait_for("world")
        process.send_signal(signal.SIGINT)
        wait_for("stopped")
        deadline = time.monotonic() + 30
        while not fake_server.engine.aborted:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        wait_for(">")
        os.write(terminal, b"/help\r")
        wait_for("/quit")
        wait_for(">")
        os.write(terminal, b"\x04")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert "hello" in (tmp_path / "chat_history").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("one", ""),
        ("one\n\ntwo", "one\n\n"),
        ("one\n\n", "one\n\n"),
        ("```\na\n\nb", ""),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n\n"),
    ],
)
def test_markdown_is_printed_block_by_block(text: str, done: str) -> None:
    assert split_blocks(text) == (done, text[len(done) :])


def test_a_pipe_gets_no_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = ChatView(plain=False, history=tmp_path / "history")
    with view.answer() as show:
        show("**bold**")
    assert capsys.readouterr().out == "**bold**\n"


# ------------------------------------------------------------------------------------------------- bench


def test_no_prompt_of_a_benchmark_was_seen_while_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import argparse

    rounds: list[list[tuple[int, ...]]] = []

    def run_batch(engine: Any, requests: list[tuple[list[int], int]], stage: Stage) -> tuple[float, int]:
        rounds.append([tuple(prompt) for prompt, _ in requests])
        return 1.0, 1

    monkeypatch.setattr(bench, "_run_batch", run_batch)
    monkeypatch.setattr(bench, "report", lambda *_: None)
    parser = argparse.ArgumentParser()
    bench.add_flags(parser, "throughput")
    arch = SimpleNamespace(vocab_size=300)
    engine: Any = SimpleNamespace(config=SimpleNamespace(model_config=SimpleNamespace(arch=arch)))
    bench.run_throughput(engine, parser.parse_args(["--num-prompts", "3"]), Progress(quiet=True))
    warmup, measured = rounds
    assert len(warmup) == 1
    assert len(measured) == 3
    assert not set(warmup) & set(measured)


@pytest.mark.usefixtures("in_process")
def test_bench_throughput_and_latency(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--model", model, "--input-len", "8", "--output-len", "4", *FLAGS[:-2]]
    out = str(tmp_path / "figures.json")
    assert (
        cli.main(["bench", "throughput", "--num-prompts", "3", "--json", "--output-json", out, *flags]) == 0
    )
    captured = capsys.readouterr()
    assert captured.err == "", "quiet, where a program reads it"
    shown = json.loads(captured.out)
    assert shown == json.loads(Path(out).read_text(encoding="utf-8"))
    assert shown["figures"]["requests"] == 3
    assert shown["figures"]["output tokens per second"] > 0
    assert shown["figures"]["loading"] > 0
    assert shown["figures"]["warm-up"] > 0
    assert cli.main(["bench", "latency", "--batch-size", "2", "--num-iters", "2", *flags]) == 0
    captured = capsys.readouterr()
    assert "median batch" in captured.out
    assert captured.out.endswith("its last; loading and warm-up came before them.\n")
    assert captured.err.split(" ...\n")[:2] == ["Loading the engine", "Warming up"]


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_a_benchmark_tells_what_it_is_at_while_it_is(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class SlowEngine:
        """One of its requests ends with every second step."""

        config = SimpleNamespace(model_config=SimpleNamespace(arch=SimpleNamespace(vocab_size=300)))

        def __init__(self) -> None:
            self.running: list[str] = []
            self.steps = 0

        def add_request(self, request_id: str, *_: Any) -> None:
            assert request_id not in self.running
            self.running.append(request_id)

        def has_unfinished_requests(self) -> bool:
            return bool(self.running)

        def step(self) -> list[Any]:
            time.sleep(0.05)
            self.steps += 1
            if self.steps % 2:
                return []
            return [RequestOutput(self.running.pop(), None, [], [], finished=True)]

        def shutdown(self) -> None:
            pass

    def load(args: Any) -> Any:
        time.sleep(0.05)
        return SlowEngine()

    monkeypatch.setattr(bench_progress, "LINE_S", 0.02)
    monkeypatch.setattr(engine_commands, "_load_llm_engine", load)
    count = {"throughput": ["--num-prompts", "4"], "latency": ["--batch-size", "2", "--num-iters", "2"]}
    assert cli.main(["bench", kind, *count[kind]]) == 0
    captured = capsys.readouterr()
    told = captured.err.splitlines()
    assert told[:2] == ["Loading the engine ...", "Loading the engine: 0 s"]
    assert told.index("Warming up ...") < told.index("Measuring ...")
    assert "Measuring: 2 of 4 requests, 5 steps, 0 s" in told
    assert re.search(r"\n  loading +0\.\d\d s\n  warm-up +0\.\d\d s\n  .*came before", captured.out)


def test_on_a_terminal_a_benchmark_draws_bars_and_takes_them_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(bench_progress, "REDRAW_S", 0.01)
    progress = Progress(quiet=False)
    with progress.stage("Loading"):
        time.sleep(0.05)
    with progress.stage("Measuring", 4) as stage:
        stage.finished, stage.moves = 3, 17
        time.sleep(0.1)
    drawn = screen.getvalue()
    assert "Loading: 00:00" in drawn
    assert "3/4" in drawn
    assert "17 steps" in drawn
    assert drawn.rpartition("\r")[0].rpartition("\r")[2].strip() == ""
    assert progress.seconds["Measuring"] >= 0.1


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("rows", "columns"), [(24, 80), (0, 0), (0, 80)])
def test_a_terminal_of_any_size_shows_what_a_benchmark_is_at(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pty
    import termios

    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (rows, columns))
    with os.fdopen(terminal, "rb", 0) as reader, os.fdopen(inside, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        with Progress(quiet=False).stage("Loading"):
            time.sleep(0.01)
        assert b"Loading" in reader.read(1000)


def test_a_subcommand_that_is_left_out_comes_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["bench"])
    assert left.value.code == 2
    shown = capsys.readouterr().err
    assert shown.endswith("learnvllm bench: error: the following arguments are required: KIND\n")
    examples = [
        line.partition("#")[0].split() for line in shown.splitlines() if line.startswith("  learnvllm")
    ]
    assert [example[2] for example in examples] == list(bench.KINDS)
    for example in examples:  # they can be typed as they stand
        cli._make_parser(example[1:]).parse_args(example[1:])
    with pytest.raises(SystemExit):
        cli.main(["dev"])
    assert "Write the starters" in capsys.readouterr().err


def test_bench_serve(fake_server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake_server.engine.token_seconds = 0.002
    command = ["bench", "serve", "--base-url", fake_server.url, "--num-prompts", "6", "--input-len", "10"]
    command += [
        "--output-len",
        "5",
        "--request-rate",
        "200",
        "--random-range-ratio",
        "0.5",
        "--vocab-size",
        "200",
    ]
    assert cli.main(command) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("Measuring ...\n")
    assert captured.out.endswith("  time: from the first request sent to the end of the last answer.\n")
    assert cli.main([*command, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert (figures["successful requests"], figures["failed requests"]) == (6, 0)
    assert figures["median time per output token (TPOT)"] >= 1
    assert figures["median time to first token (TTFT)"] > 0
    lengths = {len(prompt) for prompt in fake_server.engine.prompts[-6:]}
    assert len(lengths) > 1
    assert lengths <= set(range(5, 16))


def test_percentiles() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1, 2], 0.5) == 1.5
    assert percentile([7], 0.99) == 7
