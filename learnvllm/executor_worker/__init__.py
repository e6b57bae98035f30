"""Day 5 · Executor and worker: who runs a step, on which process and device, from which state (upstream:
vllm/v1/executor/, vllm/v1/worker/)."""
