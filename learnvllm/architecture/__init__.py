"""Day 1 · Architecture: the contracts that cross layers, and nothing that computes.

Every other package imports from here and this one imports from none of them, so it stays free of torch.
Begin with `request.py`, what the engine knows of a request, and `step.py`, what
scheduler and workers tell each other; `messages.py` is what crosses processes.
Upstream namesakes: vllm/config/, vllm/v1/request.py, vllm/v1/outputs.py, vllm/v1/engine/__init__.py,
vllm/v1/core/sched/output.py.
"""
