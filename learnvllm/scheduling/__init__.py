"""Day 3 · Scheduling: which tokens of which requests the next step computes.

One rule under one token budget, of which prompts get a share; no phases. Imports no torch.
Upstream namesake: vllm/v1/core/sched/.
"""
