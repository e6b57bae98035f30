"""Day 6 · Model layers: from a file on disk to hidden states and logits, and the kernels between.

Begin with `models/llama.py`, a whole model on one page; `attention.py` and `linear.py` are its two large
parts, `ops/` what they compute with. `registry.py` builds and loads; `loading/` turns whatever --model names
into a directory. Upstream namesake: vllm/model_executor/.
"""
