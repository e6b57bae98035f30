"""The runner whose state lives on the device: the host sends what changed and never waits within a step.

Begin with `rows.py` (the state and its deltas), then `inputs.py` (a step's inputs, made on the device),
`runner.py` (the step) and `cuda_graphs.py` (a step replayed as one launch). `../model_runner.py` does the
same in the simplest way and is what this one is tested against. Upstream namesake: vllm/v1/worker/gpu/.
"""
