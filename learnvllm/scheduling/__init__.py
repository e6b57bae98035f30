"""Day 3 · Scheduling: which tokens of which requests the next step computes.

One rule under one token budget, of which prompts get a share; no phases. Imports no torch. Begin with
`scheduler.py`; a step while it is decided is `step_plan.py`, who waits is in `request_queue.py`. `toy.py` and
`simulator.py` run it all without a model.
Upstream namesake: vllm/v1/core/sched/.
"""
