"""Engine flags: one declaration gives the Python arguments, the command line and its help."""

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from learnvllm.architecture.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
)
from learnvllm.architecture.errors import ConfigError
from learnvllm.assembly import create_engine_config
from learnvllm.engine_core.arg_utils import EngineArgs


def parse(*argv: str) -> EngineArgs:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    return EngineArgs.from_cli_args(parser.parse_args(argv))


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", 7), ("model", b"x"), ("trace_file", True), ("trace_file", 0), ("disable_log_stats", "no")],
)
def test_a_flag_of_another_type_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}=.*must be"):
        create_engine_config(EngineArgs(**{name: value}))


def test_a_model_may_be_a_path(tiny_directory: Path) -> None:
    config = create_engine_config(EngineArgs(model=tiny_directory))  # type: ignore[arg-type]
    assert config.model_config.path == tiny_directory.resolve()


def test_a_trace_file_may_begin_with_the_home_directory(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    config = create_engine_config(EngineArgs(model=str(tiny_directory), trace_file=Path("~/t.json")))
    assert config.observability_config.trace_file == tmp_path / "t.json"


def test_an_empty_command_line_gives_the_defaults() -> None:
    assert parse() == EngineArgs()


def test_flags_are_named_as_vllms_and_typed() -> None:
    args = parse(
        *("--model", "/m", "--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens", "64"),
        *(
            "--gpu-memory-utilization",
            "0.5",
            "--block-size",
            "32",
            "--no-enable-prefix-caching",
            "--seed",
            "7",
        ),
        *("--dtype", "float32", "--tensor-parallel-size", "1", "--scheduling-policy", "priority"),
        *("--no-async-scheduling", "--disable-log-stats", "--trace-file", "t.json"),
    )
    assert (args.model, args.max_model_len, args.max_num_seqs, args.max_num_batched_tokens) == (
        "/m",
        512,
        8,
        64,
    )
    assert (args.gpu_memory_utilization, args.block_size, args.enable_prefix_caching) == (0.5, 32, False)
    assert (args.dtype, args.seed, args.scheduling_policy, args.async_scheduling) == (
        "float32",
        7,
        "priority",
        False,
    )
    assert (args.disable_log_stats, args.trace_file) == (True, Path("t.json"))


def test_every_flag_has_help_and_says_its_default() -> None:
    text = EngineArgs.add_cli_args(argparse.ArgumentParser(prog="x")).format_help()
    for f in fields(EngineArgs):
        assert "--" + f.name.replace("_", "-") in text
        assert f.metadata["help"].split()[0] in text
    assert "(default: 16)" in text


@pytest.mark.parametrize(
    "argv", [["--block-size", "x"], ["--dtype", "int3"], ["--scheduling-policy", "x"], ["--blocks", "1"]]
)
def test_nonsense_on_the_command_line_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*argv)
    assert argv[0] in capsys.readouterr().err


def test_an_unknown_argument_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(
        ConfigError, match=r"'max_model_length' is not an engine argument. Did you mean max_model_len"
    ):
        EngineArgs.from_kwargs({"max_model_length": 5})


def test_flags_reach_the_configuration(tiny_directory: Path) -> None:
    args = EngineArgs(
        model=str(tiny_directory),
        max_model_len=64,
        block_size=8,
        max_num_seqs=3,
        scheduling_policy="priority",
        enable_prefix_caching=False,
        disable_log_stats=True,
        served_model_name="mine",
    )
    config = create_engine_config(args)
    assert config.model_config.path == tiny_directory
    assert (config.max_model_len, config.served_model_name) == (64, "mine")
    assert (config.cache_config.block_size, config.cache_config.enable_prefix_caching) == (8, False)
    assert (config.scheduler_config.max_num_seqs, config.scheduler_config.policy) == (3, "priority")
    assert config.observability_config.log_stats is False


def test_every_field_of_every_part_has_a_flag() -> None:
    """No part of the configuration is out of reach, and no flag reaches nothing."""
    from learnvllm.architecture.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ObservabilityConfig,
        ParallelConfig,
        SchedulerConfig,
    )

    parts = (ModelConfig, CacheConfig, SchedulerConfig, ParallelConfig, DeviceConfig, ObservabilityConfig)
    names = {f.name for part in parts for f in fields(part)} - {"path", "arch", "policy", "log_stats"}  # type: ignore[arg-type]
    assert {f.name for f in fields(EngineArgs)} == names | {"scheduling_policy", "disable_log_stats"}


def test_flags_the_model_contradicts_are_refused(tiny_directory: Path) -> None:
    with pytest.raises(ConfigError, match="max_position_embeddings, 128"):
        create_engine_config(EngineArgs(model=str(tiny_directory), max_model_len=129))


@pytest.fixture
def tiny_directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 8, '
        '"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, '
        '"max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 2}'
    )
    return tmp_path


def test_a_flag_that_would_do_nothing_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="'swap_space' is not an engine argument"):
        EngineArgs.from_kwargs({"swap_space": 4})


def test_every_flag_reaches_the_configuration() -> None:
    """A flag that no part of the tree has a field for would be taken and forgotten."""
    renamed = {"scheduling_policy": "policy", "disable_log_stats": "log_stats"}
    parts = (
        ModelConfig,
        CacheConfig,
        SchedulerConfig,
        ParallelConfig,
        DeviceConfig,
        ObservabilityConfig,
    )
    known = [f.name for part in parts for f in fields(part)]
    assert len(known) == len(set(known))  # so that a name means one field
    assert {renamed.get(f.name, f.name) for f in fields(EngineArgs)} == set(known) - {"path", "arch"}
