"""Day 5 · Executor and worker: who runs a step, on which process and device, from which state.

Begin with `model_runner.py`, a step from what changed to sampled ids; `worker.py` owns the device it runs on,
and an `executor.py` the workers. `sample/` is the sampler. Upstream namesakes: vllm/v1/executor/,
vllm/v1/worker/.
"""
