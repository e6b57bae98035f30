"""Day 6: the layers a model is built from, their kernels, and the models themselves (upstream: vllm/model_executor/)."""
