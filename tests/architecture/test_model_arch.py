"""config.json is read as transformers reads it, in old and new spelling; what we cannot do is refused."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.rope_config import FULL_ATTENTION, SLIDING_ATTENTION, RopeConfig

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
QWEN2 = LLAMA | {"model_type": "qwen2"}
GEMMA3 = LLAMA | {"model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 32, "sliding_window": 16}


def parse(tmp_path: Path, config: dict[str, Any], **changes: Any) -> ModelArchitecture:
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    return ModelArchitecture.from_directory(tmp_path)


def test_defaults_follow_transformers(tmp_path: Path) -> None:
    arch = parse(tmp_path, LLAMA)
    assert (arch.head_dim, arch.hidden_act, arch.tie_word_embeddings) == (16, "silu", False)
    assert (arch.attention_bias, arch.attention_out_bias, arch.mlp_bias) == (False, False, False)
    assert arch.layer_types == (FULL_ATTENTION,) * 3
    assert arch.rope.theta == 10000.0
    without_kv = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert parse(tmp_path, without_kv).num_kv_heads == 4


SPARSE = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "rms_norm_eps")}
UNSAID = ("head_dim", "rms_norm_eps", "tie_word_embeddings", "sliding_window", "query_pre_attn_scalar")
LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize("more", [{}, {"use_sliding_window": True}], ids=["bare", "window"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text"])
def test_what_is_not_said_is_what_transformers_takes(
    model_type: str, more: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoConfig

    arch = parse(tmp_path, SPARSE, model_type=model_type, num_key_value_heads=2, **more)
    theirs = AutoConfig.from_pretrained(tmp_path)
    for name in UNSAID:
        if (value := getattr(theirs, name, None)) is not None:
            assert getattr(arch, name) == value, name
    assert arch.hidden_act == getattr(theirs, "hidden_activation", getattr(theirs, "hidden_act", None))
    window = SLIDING_ATTENTION if getattr(theirs, "sliding_window", None) else FULL_ATTENTION
    assert list(arch.layer_types) == getattr(theirs, "layer_types", [window] * 3)
    if arch.moe is not None:
        assert (arch.moe.num_experts, arch.moe.top_k) == (theirs.num_experts, theirs.num_experts_per_tok)
        assert (arch.moe.intermediate_size, arch.moe.renormalize) == (768, theirs.norm_topk_prob)
        assert arch.moe.sparse_layers == (0, 1, 2)


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        *((model_type, {}) for model_type in ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text")),
        *((model_type, {"num_key_value_heads": None}) for model_type in ("llama", "qwen2", "qwen3")),
    ],
)
def test_the_number_of_kv_heads_that_is_not_said(
    model_type: str, said: dict[str, None], tmp_path: Path
) -> None:
    from transformers import AutoConfig

    arch = parse(tmp_path, SPARSE, model_type=model_type, num_attention_heads=64, hidden_size=512, **said)
    theirs = AutoConfig.from_pretrained(tmp_path).num_key_value_heads
    assert arch.num_kv_heads == (64 if theirs is None else theirs)


def test_gemma3_reads_rope_parameters_by_layer_type_only(tmp_path: Path) -> None:
    from transformers import AutoConfig

    flat = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    arch = parse(tmp_path, SPARSE, model_type="gemma3_text", num_key_value_heads=2, rope_parameters=flat)
    theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert arch.rope == RopeConfig(theta=theirs[FULL_ATTENTION]["rope_theta"])
    assert arch.rope_local == RopeConfig(theta=theirs[SLIDING_ATTENTION]["rope_theta"])


@pytest.mark.parametrize(("model_type", "act"), [("llama", "silu"), ("gemma3_text", "gelu_pytorch_tanh")])
def test_gemma_alone_names_its_activation_otherwise(model_type: str, act: str, tmp_path: Path) -> None:
    both = {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"}
    assert parse(tmp_path, SPARSE, model_type=model_type, num_key_value_heads=2, **both).hidden_act == act


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_a_rope_scaling_that_was_added_by_hand_counts(model_type: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    rope = {"rope_type": "default", "rope_theta": 500.0}
    is_nested = model_type == "gemma3_text"
    parameters = {FULL_ATTENTION: rope, SLIDING_ATTENTION: rope} if is_nested else rope
    arch = parse(tmp_path, LLAMA, model_type=model_type, rope_parameters=parameters, rope_scaling=LINEAR)
    theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters
    theirs = theirs[FULL_ATTENTION] if is_nested else theirs
    assert (arch.rope.rope_type, arch.rope.factor) == ("linear", 2.0)
    assert arch.rope.theta == theirs["rope_theta"]
    assert arch.rope_local == (RopeConfig(theta=500.0) if is_nested else None)


def test_qwen2_has_biases_on_q_k_v_only(tmp_path: Path) -> None:
    arch = parse(tmp_path, QWEN2)
    assert (arch.attention_bias, arch.attention_out_bias) == (True, False)


@pytest.mark.parametrize("config", [LLAMA, QWEN2], ids=["llama", "qwen2"])
def test_a_window_that_transformers_ignores_is_ignored(config: dict[str, Any], tmp_path: Path) -> None:
    arch = parse(tmp_path, config, sliding_window=4096)
    assert arch.sliding_window is None
    assert arch.layer_types == (FULL_ATTENTION,) * 3


def test_qwen2_slides_from_max_window_layers_on(tmp_path: Path) -> None:
    arch = parse(tmp_path, QWEN2, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert arch.layer_types == (FULL_ATTENTION, SLIDING_ATTENTION, SLIDING_ATTENTION)
    assert (
        parse(tmp_path, QWEN2, use_sliding_window=True, sliding_window=8).layer_types == (FULL_ATTENTION,) * 3
    )


def test_gemma3_has_a_global_layer_every_sixth_and_two_ropes(tmp_path: Path) -> None:
    arch = parse(tmp_path, GEMMA3, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert arch.layer_types == (SLIDING_ATTENTION,) * 5 + (FULL_ATTENTION, SLIDING_ATTENTION)
    assert (arch.rope.theta, arch.rope.rope_type, arch.rope.factor) == (1e6, "linear", 8.0)
    assert arch.rope_local is not None
    assert (arch.rope_local.theta, arch.rope_local.rope_type) == (1e4, "default")
    assert arch.tie_word_embeddings


def test_old_and_new_spellings_of_rope_mean_the_same(tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 128
    old = parse(tmp_path, LLAMA, rope_theta=5e5, rope_scaling=scaling | {"type": "llama3"})
    new = parse(tmp_path, LLAMA, rope_parameters=scaling | {"rope_type": "llama3", "rope_theta": 5e5})
    assert old.rope == new.rope
    assert old.rope.theta == 5e5


def test_yarn_without_lengths_falls_back_as_transformers_does(tmp_path: Path) -> None:
    rope = parse(tmp_path, LLAMA, rope_scaling={"rope_type": "yarn", "factor": 4.0}).rope
    assert rope.original_max_position == 512


MOE = LLAMA | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({}, (0, 1, 2)),
        ({"decoder_sparse_step": 2}, (1,)),
        ({"mlp_only_layers": [1, 7]}, (0, 2)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, None),
        ({"num_experts": 0}, None),
        ({"num_local_experts": 4}, (0, 1, 2)),
    ],
)
def test_layers_have_experts_where_transformers_gives_them_some(
    changes: dict[str, Any], sparse: tuple[int, ...] | None, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    arch = parse(tmp_path, MOE, moe_intermediate_size=16, **changes)
    assert (arch.moe and arch.moe.sparse_layers) == sparse
    config = {k: v for k, v in MOE.items() if k != "num_experts" or "num_local_experts" not in changes}
    parse(tmp_path, config, moe_intermediate_size=16, **changes)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert tuple(i for i, layer in enumerate(theirs.model.layers) if hasattr(layer.mlp, "experts")) == (
        sparse or ()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok must be at most num_experts=8"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok must be at least 1"),
        ({"num_experts": -1}, "num_experts must be at least 0"),
        ({"num_experts": 10**9}, "num_experts must be at most"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size must be at least 1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be at least 1"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers must be a whole number"),
        ({"mlp_only_layers": 1}, "mlp_only_layers must be a list"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
    ],
)
def test_experts_that_make_no_sense_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse(tmp_path, MOE, **changes)


def test_all_end_of_sequence_ids_are_collected(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert parse(tmp_path, LLAMA, eos_token_id=2).eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mamba2"},
            "'mamba2' is not implemented. Implemented: llama, qwen2, qwen3, qwen3_moe, gemma3_text",
        ),
        ({"hidden_size": None}, "lacks the field 'hidden_size'"),
        ({"hidden_size": "64"}, "hidden_size='64': hidden_size must be a whole number"),
        ({"hidden_size": 64.5}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
        ({"num_attention_heads": 64, "head_dim": None, "num_key_value_heads": None}, "head_dim must be even"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be at most"),
        ({"vocab_size": 10**400}, "vocab_size must be at most"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be finite"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_scaling": [2.0]}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4}}, "below high_freq_factor"),
        ({"rope_theta": 1.0}, "rope_theta must be above 1"),
        ({"eos_token_id": [2, "</s>"]}, "eos_token_id must be a whole number"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "lacks the field 'factor'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"layer_types": ["full_attention"]}, "names 1 layers but num_hidden_layers is 3"),
        ({"layer_types": ["chunked"] * 3}, "chunked"),
        ({"layer_types": ["sliding_attention"] * 3}, "no sliding_window"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"vocab_size": 0}, "vocab_size"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_run_is_refused_with_its_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse(tmp_path, LLAMA, **changes)


def test_capped_logits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="final_logit_softcapping"):
        parse(tmp_path, GEMMA3, final_logit_softcapping=30.0)


def test_a_directory_without_config_and_broken_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        ModelArchitecture.from_directory(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        ModelArchitecture.from_directory(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match="must hold a JSON object"):
        ModelArchitecture.from_directory(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelLoadError, match="lacks the field 'num_hidden_layers'"):
        ModelArchitecture.from_directory(tmp_path)


def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        ModelArchitecture.from_directory(tmp_path)


# ------------------------------------------------------------------------------------- whatever a file holds

ROPE_FIELDS = [
    *("rope_type", "type", "factor", "rope_theta", "low_freq_factor", "high_freq_factor", "beta_fast"),
    *("beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "partial_rotary_factor"),
    *("original_max_position_embeddings", "full_attention", "sliding_attention"),
]
FIELDS = [
    *(LLAMA.keys() | GEMMA3.keys()),
    *("hidden_act", "hidden_activation", "tie_word_embeddings", "attention_bias", "mlp_bias", "rope_theta"),
    *("rope_scaling", "rope_parameters", "rope_local_base_freq", "layer_types", "use_sliding_window"),
    *("max_window_layers", "sliding_window_pattern", "query_pre_attn_scalar", "bos_token_id", "eos_token_id"),
    *("dtype", "torch_dtype", "partial_rotary_factor", "original_max_position_embeddings"),
    *("quantization_config", "attn_logit_softcapping", "num_experts", "num_experts_per_tok"),
    *("num_local_experts", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers"),
    "norm_topk_prob",
]
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.integers(),
    st.floats(),
    st.sampled_from(["", "linear", "llama3", "yarn", "full_attention", "sliding_attention", "silu", "7"]),
)
ROPES = st.dictionaries(
    st.sampled_from(ROPE_FIELDS), PLAIN | st.dictionaries(st.sampled_from(ROPE_FIELDS), PLAIN)
)
ANY_JSON = (
    PLAIN | ROPES | st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)


@given(
    base=st.sampled_from([LLAMA, QWEN2, QWEN2 | {"model_type": "qwen3"}, MOE, GEMMA3]),
    changes=st.dictionaries(st.sampled_from(FIELDS), ANY_JSON, min_size=1, max_size=4),
    generation=st.none() | st.fixed_dictionaries({"eos_token_id": ANY_JSON}),
)
def test_any_json_gives_what_the_types_say_or_a_model_load_error(
    base: dict[str, Any], changes: dict[str, Any], generation: dict[str, Any] | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if generation is not None:
            (Path(folder) / "generation_config.json").write_text(json.dumps(generation))
        try:
            arch = parse(Path(folder), base, **changes)
        except ModelLoadError:
            return
    for part in (arch, arch.rope, arch.rope_local or RopeConfig(), *([arch.moe] if arch.moe else [])):
        hints = get_type_hints(type(part))
        for field in dataclasses.fields(part):
            hint = hints[field.name]
            allowed = get_args(hint) if type(None) in get_args(hint) else (hint,)
            value = getattr(part, field.name)
            assert any(isinstance(value, getattr(h, "__origin__", h)) for h in allowed), (field.name, value)
    assert len(arch.layer_types) == arch.num_layers
    assert all(type(token) is int for token in arch.eos_token_ids)
