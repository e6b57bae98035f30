"""Mixture of experts: a router picks a few experts for each token, and only those compute it.

Three parts with one task each: `router.py` picks, `routed_experts.py` holds weights, `runner.py` owns the
forward. What computes is chosen by `oracle.py` from the experts of `experts/`, which know nothing of routing
or of where tokens come from (`modular_kernel.py`). Upstream: vllm/model_executor/layers/fused_moe/.
"""
