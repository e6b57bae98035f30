"""Qwen2 and Qwen2.5: Llama with a bias on q, k and v, and maybe a sliding window in the upper layers.

Neither needs code: `ModelArchitecture` says attention_bias=True and attention_out_bias=False for qwen2 and
which layers have a window, and Llama's layers do as the architecture says. So the class is Llama's.
Upstream namesake: vllm/model_executor/models/qwen2.py. Paper: arXiv 2407.10671.
"""

from learnvllm.model_layers.models.llama import LlamaForCausalLM

Qwen2ForCausalLM = LlamaForCausalLM
