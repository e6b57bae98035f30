"""A mixture of experts computes what a dense loop over all of them computes, whichever kernel does it."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from learnvllm.architecture.config import DeviceConfig, MoEBackendName
from learnvllm.architecture.errors import ConfigError, ModelLoadError
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.moe_config import MoEConfig
from learnvllm.model_layers import ops
from learnvllm.model_layers.fused_moe.align import moe_align_block_size, sort_by_expert
from learnvllm.model_layers.fused_moe.modular_kernel import FusedMoEKernel, MoEKernelConfig
from learnvllm.model_layers.fused_moe.oracle import _EXPERTS, MoEBackend, UnquantizedMoEOracle
from learnvllm.model_layers.fused_moe.prepare_finalize import BatchedPrepareFinalize, LocalPrepareFinalize
from learnvllm.model_layers.fused_moe.routed_experts import RoutedExperts
from learnvllm.model_layers.fused_moe.router import FusedTopKRouter, append_shared_experts
from learnvllm.model_layers.fused_moe.runner import MoERunner, make_moe
from learnvllm.model_layers.ops.cpu_moe import BLOCK, GroupedPanels, fused_mul_sum, sort_into_blocks
from learnvllm.model_layers.weights import Weights
from tests.model_layers.test_loading import edit_tensors, engine_config, load, logits_of
from tests.model_layers.tiny_models import make_tiny_model

HIDDEN, INNER, EXPERTS = 32, 24, 6
BACKENDS = list(MoEBackend)


class Tensors:
    """A checkpoint in a dictionary."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        assert self.tensors[name].shape == shape, name
        return self.tensors[name]

    def has(self, name: str) -> bool:
        return name in self.tensors


def layer_tensors(num_experts: int = EXPERTS, hidden: int = HIDDEN, inner: int = INNER) -> dict[str, Tensor]:
    """A sparse layer as transformers 5 holds it: all experts of a kind in one tensor."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "gate.weight": (num_experts, hidden),
        "experts.gate_up_proj": (num_experts, 2 * inner, hidden),
        "experts.down_proj": (num_experts, hidden, inner),
    }
    return {n: torch.randn(s, generator=generator) * s[-1] ** -0.5 for n, s in shapes.items()}


def one_by_one(fused: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same layer as checkpoints hold it: three matrices an expert."""
    tensors = {"gate.weight": fused["gate.weight"]}
    for e, (gate_up, down) in enumerate(zip(fused["experts.gate_up_proj"], fused["experts.down_proj"])):
        gate, up = gate_up.chunk(2)
        tensors |= {
            f"experts.{e}.{n}_proj.weight": w for n, w in (("gate", gate), ("up", up), ("down", down))
        }
    return tensors


def dense(x: Tensor, fused: dict[str, Tensor], top_k: int, renormalize: bool) -> Tensor:
    """Every expert computes every token; who was not chosen counts nothing. In double precision."""
    x, tensors = x.double(), {n: t.double() for n, t in fused.items()}
    shares = (x @ tensors["gate.weight"].T).softmax(-1)
    kept = torch.zeros_like(shares).scatter_(1, shares.topk(top_k).indices, 1)
    shares = shares * kept
    if renormalize:
        shares = shares / shares.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for e, (gate_up, down) in enumerate(zip(tensors["experts.gate_up_proj"], tensors["experts.down_proj"])):
        gate, up = (x @ gate_up.T).chunk(2, dim=-1)
        out += shares[:, e, None] * ((F.silu(gate) * up) @ down.T)
    return out.float()


def architecture(tmp_path: Path, num_experts: int, top_k: int, renormalize: bool) -> ModelArchitecture:
    config = {
        "model_type": "qwen3_moe",
        "vocab_size": 100,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "num_experts": num_experts,
        "num_experts_per_tok": top_k,
        "norm_topk_prob": renormalize,
        "moe_intermediate_size": INNER,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return ModelArchitecture.from_directory(tmp_path)


def sizes(top_k: int = 2, **changes: object) -> MoEKernelConfig:
    values = {
        "num_experts": EXPERTS,
        "top_k": top_k,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "hidden_act": "silu",
        "linear_mode": "fp32",
        "dtype": torch.float32,
        "device_type": "cpu",
    }
    return MoEKernelConfig(**values | changes)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- the whole layer


@pytest.mark.parametrize("stored", ["fused", "one by one"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_mod_01_router_experts_and_runner_equal_a_dense_loop(
    backend: MoEBackend, stored: str, tmp_path: Path
) -> None:
    fused = layer_tensors()
    source = Tensors(fused if stored == "fused" else one_by_one(fused))
    for top_k, renormalize in itertools.product([1, 2, EXPERTS], [False, True]):
        arch = architecture(tmp_path, EXPERTS, top_k, renormalize)
        assert arch.moe == MoEConfig(EXPERTS, top_k, INNER, renormalize, (0,))
        layer = make_moe(arch, arch.moe, Weights(source, moe_backend=backend.value))
        for tokens in (1, 2, 5, 64, 230):
            x = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(tokens))
            torch.testing.assert_close(
                layer(x), dense(x, fused, top_k, renormalize), atol=1e-5, rtol=1e-5, msg=f"{tokens} {top_k}"
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_rounds_the_experts_and_never_the_scores(backend: MoEBackend, tmp_path: Path) -> None:
    fused = layer_tensors()
    rounded = {n: t if n == "gate.weight" else t.half().float() for n, t in fused.items()}
    arch = architecture(tmp_path, EXPERTS, 2, True)
    assert arch.moe is not None
    layer = make_moe(arch, arch.moe, Weights(Tensors(fused), "fp16", moe_backend=backend.value))
    x = torch.randn(70, HIDDEN)
    torch.testing.assert_close(layer(x), dense(x, rounded, 2, True), atol=1e-5, rtol=1e-5)


def test_a_token_does_not_depend_on_the_tokens_beside_it(tmp_path: Path) -> None:
    arch = architecture(tmp_path, EXPERTS, 2, True)
    assert arch.moe is not None
    layer, x = make_moe(arch, arch.moe, Weights(Tensors(layer_tensors()), "fp16")), torch.randn(230, HIDDEN)
    together = layer(x)
    for tokens in (1, 3, 100):
        assert torch.equal(layer(x[:tokens]), together[:tokens])


# -------------------------------------------------------------------------------------------- pairs of parts


@pytest.mark.parametrize("experts", _EXPERTS.values())
@pytest.mark.parametrize("prepare_finalize", [LocalPrepareFinalize, BatchedPrepareFinalize])
def test_mod_03_parts_of_one_layout_compute_the_same_and_others_are_refused(
    prepare_finalize: type, experts: type
) -> None:
    config, fused = sizes(), layer_tensors()
    if prepare_finalize.activation_format is not experts.activation_format:
        with pytest.raises(ValueError, match=f"{prepare_finalize.__name__} brings.*{experts.__name__} takes"):
            FusedMoEKernel(prepare_finalize(), experts(config))
        return
    kernel = FusedMoEKernel(prepare_finalize(), experts(config))
    held = RoutedExperts(Weights(Tensors(fused)), kernel.experts, config)
    for tokens in (1, 40):
        x = torch.randn(tokens, HIDDEN)
        chosen = FusedTopKRouter(2, True).select_experts(x @ fused["gate.weight"].T)
        torch.testing.assert_close(
            kernel.apply(x, *chosen, held), dense(x, fused, 2, True), atol=1e-5, rtol=1e-5
        )


# ------------------------------------------------------------------------------------------------- alignment


@st.composite
def choices(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Expert ids [T, K], no expert twice for a token, and the number of experts; some experts are popular."""
    num_experts = draw(st.integers(1, 12))
    popular = draw(st.integers(1, num_experts))
    top_k, tokens = draw(st.integers(1, popular)), draw(st.integers(0, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    ids = [torch.randperm(popular, generator=generator)[:top_k] for _ in range(tokens)]
    return (torch.stack(ids) if ids else torch.empty(0, top_k, dtype=torch.int64)), num_experts


@given(chosen=choices(), block_size=st.sampled_from([1, 2, 3, 8, 16]))
def test_mod_05_every_pair_has_one_slot_in_a_block_of_its_expert(
    chosen: tuple[Tensor, int], block_size: int
) -> None:
    ids, num_experts = chosen
    pairs, flat = ids.numel(), ids.flatten().tolist()
    slots, experts, num_tokens_post_padded = moe_align_block_size(ids, block_size, num_experts)
    assert len(slots) == len(experts) * block_size
    taken = slots[slots < pairs]
    assert sorted(taken.tolist()) == list(range(pairs))  # a permutation of the pairs
    used = 0
    for block, expert in zip(slots.view(-1, block_size).tolist(), experts.tolist()):
        inside = [pair for pair in block if pair < pairs]
        assert all(flat[pair] == expert for pair in inside)
        assert block == inside + [pairs] * (block_size - len(inside))  # padding comes last
        assert (expert == -1) == (not inside)  # no block is only padding, but the ones left over
        used += block_size if inside else 0
    assert num_tokens_post_padded.tolist() == [used]
    assert used == sum(-(-flat.count(e) // block_size) * block_size for e in range(num_experts))
    order, counts = sort_by_expert(ids, num_experts)
    assert torch.equal(order, taken)  # an expert's tokens keep their order
    assert counts.tolist() == [flat.count(e) for e in range(num_experts)]


def test_the_pages_example_of_alignment() -> None:
    slots, experts, used = moe_align_block_size(torch.tensor([[0, 2], [2, 1], [2, 0]]), 2, 4)
    assert slots.tolist() == [0, 5, 3, 6, 1, 2, 4, 6, 6, 6]
    assert (experts.tolist(), used.tolist()) == ([0, 1, 2, 2, -1], [8])


@given(chosen=choices(), repeat=st.sampled_from([1, 3, 7]))
def test_the_kernel_sorts_as_its_torch_twin_does(chosen: tuple[Tensor, int], repeat: int) -> None:
    ids, num_experts = chosen[0].repeat(repeat, 1), chosen[1]  # more rows than a block has
    tokens, rows, blocks = sort_into_blocks(ids, num_experts)
    slots, experts, _ = moe_align_block_size(ids, BLOCK, num_experts)
    order = slots[slots < ids.numel()]
    assert torch.equal(tokens, order // ids.shape[1])
    assert torch.equal(rows.flatten()[order], torch.arange(ids.numel()))
    counts = (slots.view(-1, BLOCK) < ids.numel()).sum(1)
    expected = torch.stack([experts, counts.cumsum(0) - counts, counts], dim=1)[counts > 0]
    assert torch.equal(blocks[blocks[:, 2] > 0], expected)


@pytest.mark.parametrize("out_features", [1, 8, 31, 32, 33, 70])
def test_experts_may_have_any_number_of_features(out_features: int) -> None:
    generator = torch.Generator().manual_seed(out_features)
    experts = torch.randn(2, out_features, 12, generator=generator)
    x = torch.randn(5, 12, generator=generator)
    packed = GroupedPanels(iter(experts), 2, torch.float32)
    out = packed(x, torch.tensor([[0, 0, 2], [1, 2, 3]]))
    expected = torch.cat([x[:2] @ experts[0].T, x[2:] @ experts[1].T])
    torch.testing.assert_close(out, expected)


def test_results_are_weighed_and_added_for_each_token() -> None:
    y, rows, weights = torch.randn(12, 33)[:, :20], torch.randperm(12).view(4, 3), torch.rand(4, 3)
    torch.testing.assert_close(fused_mul_sum(y, rows, weights), (y[rows] * weights[..., None]).sum(1))


# -------------------------------------------------------------------------------------------- shared experts


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pieces", [1, 2])
def test_mod_06_a_shared_expert_fused_with_the_routed_equals_one_beside_them(
    pieces: int, backend: MoEBackend
) -> None:
    fused = layer_tensors()
    inner, generator = pieces * INNER, torch.Generator().manual_seed(1)
    shapes = {"gate": (inner, HIDDEN), "up": (inner, HIDDEN), "down": (HIDDEN, inner)}
    shared = {n: torch.randn(s, generator=generator) * 0.2 for n, s in shapes.items()}
    weights = Weights(Tensors(fused | {f"shared_expert.{n}_proj.weight": t for n, t in shared.items()}))
    router, oracle = FusedTopKRouter(2, True), UnquantizedMoEOracle()

    def gate(x: Tensor) -> Tensor:
        return x @ fused["gate.weight"].T

    def beside(x: Tensor) -> Tensor:
        return (F.silu(x @ shared["gate"].T) * (x @ shared["up"].T)) @ shared["down"].T

    kernel = oracle.make_kernel(backend, sizes())
    separate = MoERunner(gate, router, RoutedExperts(weights, kernel.experts, sizes()), kernel, beside)
    config = sizes(num_experts=EXPERTS + pieces, top_k=2 + pieces)
    kernel = oracle.make_kernel(backend, config)
    held = RoutedExperts(weights, kernel.experts, config, pieces, weights.at("shared_expert"))
    together = MoERunner(gate, router, held, kernel)
    x = torch.randn(37, HIDDEN)
    torch.testing.assert_close(together(x), separate(x), atol=1e-5, rtol=1e-5)
    chosen_weights, ids = append_shared_experts(*router.select_experts(gate(x)), EXPERTS, pieces)
    assert ids[:, 2:].tolist() == [list(range(EXPERTS, EXPERTS + pieces))] * 37
    assert (chosen_weights[:, 2:] == 1).all()


# ---------------------------------------------------------------------------------------------------- oracle


def test_mod_02_the_first_in_order_of_priority_that_can_is_chosen_and_the_others_have_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle = UnquantizedMoEOracle()
    assert oracle.select_backend(sizes()).backend is MoEBackend.CPU
    half_on_gpu = sizes(device_type="cuda", dtype=torch.bfloat16)
    assert oracle.select_backend(half_on_gpu).backend is MoEBackend.GROUPED_MM
    odd = sizes(device_type="cuda", dtype=torch.bfloat16, intermediate_size=20)
    selection = oracle.select_backend(odd)
    assert selection.backend is MoEBackend.NAIVE
    assert selection.rejected == (
        (MoEBackend.GROUPED_MM, "intermediate_size=20 in torch.bfloat16 is no multiple of 16 bytes"),
    )
    monkeypatch.setattr(ops, "uses_kernels", lambda: False)
    selection = oracle.select_backend(sizes())
    assert selection.backend is MoEBackend.NAIVE
    assert str(selection).startswith("naive: the first that can; not cpu: compiled kernels are off")


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mod_02_a_wish_is_honoured_or_refused_with_the_reason(device_type: str, dtype: torch.dtype) -> None:
    oracle = UnquantizedMoEOracle()
    for size in (HIDDEN, HIDDEN + 2):
        config = sizes(device_type=device_type, dtype=dtype, hidden_size=size)
        for backend in MoEBackend:
            reason = _EXPERTS[backend].unsupported_reason(config)
            if reason is None:
                selection = oracle.select_backend(config, backend.value)
                assert (selection.backend, selection.wished) == (backend, True)
                continue
            assert len(reason) > 10
            with pytest.raises(ModelLoadError) as refused:
                oracle.select_backend(config, backend.value)
            assert f"moe_backend='{backend.value}': {reason}. Use auto, which takes " in str(refused.value)
    with pytest.raises(ModelLoadError, match="none of that name. Use auto or one of cpu, grouped_mm"):
        oracle.select_backend(sizes(), "marlin")


def test_the_flag_names_what_the_oracle_knows() -> None:
    assert get_args(MoEBackendName) == ("auto", *(backend.value for backend in MoEBackend))


def test_every_kernel_explains_itself() -> None:
    oracle = UnquantizedMoEOracle()
    explained = {oracle.make_kernel(backend, sizes()).experts.explain() for backend in MoEBackend}
    assert len(explained) == len(MoEBackend)


# -------------------------------------------------------------------------------------------- in a checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_tiny_model("qwen3_moe", tmp_path)[0]


def test_both_forms_of_a_checkpoint_are_the_same_model(directory: Path) -> None:
    expected = logits_of(load(directory))
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for layer in (0, 2):  # the tiny model's layer 1 is dense
        prefix = f"model.layers.{layer}.mlp.experts"
        parts = {
            kind: torch.stack([tensors.pop(f"{prefix}.{e}.{kind}_proj.weight") for e in range(8)])
            for kind in ("gate", "up", "down")
        }
        tensors[f"{prefix}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1)
        tensors[f"{prefix}.down_proj"] = parts["down"]
    save_file(tensors, path)
    assert torch.equal(logits_of(load(directory)), expected)


def test_missing_extra_and_too_large_experts_are_named(directory: Path) -> None:
    name = "model__layers__2__mlp__experts__5__up_proj__weight"
    whole = load_file(directory / "model.safetensors")
    edit_tensors(directory, **{name: torch.full((40, 64), 1e5)})
    with pytest.raises(ModelLoadError, match=r"layers\.2\.mlp\.experts\.5\.gate_proj\+up_proj.*float32"):
        load(directory, "auto")
    load(directory, "float32")
    edit_tensors(directory, **{name: None})
    with pytest.raises(ModelLoadError, match=r"no tensor 'model\.layers\.2\.mlp\.experts\.5\.up_proj"):
        load(directory)
    save_file(whole, directory / "model.safetensors")
    edit_tensors(directory, model__layers__2__mlp__experts__8__up_proj__weight=torch.zeros(40, 64))
    with pytest.raises(ModelLoadError, match=r"knows nothing of: model\.layers\.2\.mlp\.experts\.8"):
        load(directory)


def test_the_log_says_what_computes_experts_and_why(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "learnvllm.model_layers.registry"):
        model = load(directory)
    last = caplog.records[-1].getMessage()
    assert last.startswith("2 layers of experts: our grouped kernel")
    assert last.endswith("(cpu: the first that can).")
    assert model.held.asks_host
    assert model.weight_bytes() > 2 * 8 * 3 * 40 * 64 * 4  # experts are counted


def test_dummy_weights_have_experts_too(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    assert torch.isfinite(logits_of(load(directory, load_format="dummy"))).all()


def test_moe_backend_for_a_dense_model_is_refused(tmp_path: Path) -> None:
    dense_model, sparse = make_tiny_model("llama", tmp_path)[0], make_tiny_model("qwen3_moe", tmp_path)[0]
    device = DeviceConfig(moe_backend="naive")
    assert replace(engine_config(sparse), device_config=device).device_config.moe_backend == "naive"
    with pytest.raises(ConfigError, match="moe_backend is for mixtures of experts, which this model is not"):
        replace(engine_config(dense_model), device_config=device)
