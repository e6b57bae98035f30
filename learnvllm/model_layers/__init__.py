"""Day 6: the layers of a model, their kernels, and the models (upstream: vllm/model_executor/)."""
