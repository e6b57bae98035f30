"""The registry of environment variables: the only way in, each with a default, a parser and a help line."""

import re
from pathlib import Path

import pytest

from learnvllm.architecture import envs
from learnvllm.architecture.errors import ConfigError


@pytest.mark.parametrize("name", envs.REGISTRY)
def test_every_variable_is_described_and_defaults_when_unset(name: str) -> None:
    var = envs.REGISTRY[name]
    assert var.name == name
    assert name.startswith("LEARNVLLM_")
    assert len(var.help) > 10
    assert envs.get(name, {}) == var.default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("LEARNVLLM_HOME", "/tmp/x", Path("/tmp/x")),
        ("LEARNVLLM_ENGINE_READY_TIMEOUT_S", "1.5", 1.5),
        ("LEARNVLLM_ENABLE_MULTIPROCESSING", "0", False),
        ("LEARNVLLM_ENABLE_MULTIPROCESSING", "Yes", True),
        ("LEARNVLLM_ENABLE_MULTIPROCESSING", "", False),
        ("LEARNVLLM_NUM_THREADS", "3", 3),
        ("LEARNVLLM_HOME", "", None),
        ("LEARNVLLM_HOME", "~/x", Path.home() / "x"),
        ("LEARNVLLM_STUDY_HOME", "~", Path.home()),
        ("LEARNVLLM_TRACE_FILE", "", None),
        ("LEARNVLLM_CPU_KERNELS", "torch", "torch"),
    ],
)
def test_texts_become_values(name: str, text: str, value: object) -> None:
    assert envs.get(name, {name: text}) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LEARNVLLM_ENGINE_READY_TIMEOUT_S", "0"),
        ("LEARNVLLM_ENGINE_READY_TIMEOUT_S", "nan"),
        ("LEARNVLLM_ENGINE_READY_TIMEOUT_S", "soon"),
        ("LEARNVLLM_ENABLE_MULTIPROCESSING", "maybe"),
        ("LEARNVLLM_NUM_THREADS", "-1"),
        ("LEARNVLLM_NUM_THREADS", "0"),
        ("LEARNVLLM_NUM_THREADS", "100000"),
        ("LEARNVLLM_NUM_THREADS", "2.5"),
        ("LEARNVLLM_CPU_KERNELS", "cuda"),
        ("LEARNVLLM_KV_CACHE_SPACE_GIB", "inf"),
        ("LEARNVLLM_ENGINE_READY_TIMEOUT_S", "1e999"),
        ("LEARNVLLM_HOME", "~nobody-of-that-name/x"),
        *((name, "a\udcff") for name in envs.REGISTRY),
    ],
)
def test_nonsense_is_refused_by_name_and_value(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        envs.get(name, {name: text})
    assert caught.value.value == text


def test_an_undeclared_variable_cannot_be_read() -> None:
    with pytest.raises(KeyError):
        envs.get("LEARNVLLM_UNHEARD_OF")


def test_typing_mistakes_are_found() -> None:
    environ = {"LEARNVLLM_HOEM": "x", "LEARNVLLM_HOME": "y", "PATH": "z"}
    assert envs.unknown_variables(environ) == ["LEARNVLLM_HOEM"]


def test_a_typing_mistake_is_told_once_with_the_name_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEARNVLLM_NUM_THREAD", "2")
    monkeypatch.setenv("LEARNVLLM_QQQQ", "1")
    envs.warn_of_unknown_variables.cache_clear()
    envs.warn_of_unknown_variables()
    envs.warn_of_unknown_variables()
    first, second = caplog.messages
    assert first.startswith("LEARNVLLM_NUM_THREAD is set")
    assert "Did you mean LEARNVLLM_NUM_THREADS?" in first
    assert second.startswith("LEARNVLLM_QQQQ is set")
    assert "learnvllm env" in second


def test_the_cache_directory_follows_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEARNVLLM_HOME", str(tmp_path))
    assert envs.home() == tmp_path
    monkeypatch.delenv("LEARNVLLM_HOME")
    assert envs.home().name == "learnvllm"


def test_arc_14_no_code_reads_the_environment_another_way(repository: Path) -> None:
    """Every LEARNVLLM_ name in the code is declared, and os.environ is read in envs.py only."""
    for path in (repository / "learnvllm").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        names = set(re.findall(r"LEARNVLLM_[A-Z_]*[A-Z]", source))
        assert names <= set(envs.REGISTRY), f"{path} names an undeclared variable"
        if path.name not in ("envs.py", "cli.py"):  # the command line reports errors of envs.get itself
            read = re.findall(r"(?:os\.environ\[|os\.environ\.get\(|os\.getenv\()[\"']LEARNVLLM_", source)
            assert not read, f"{path} reads a LEARNVLLM_ variable itself"
