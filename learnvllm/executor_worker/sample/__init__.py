"""Choosing the next token from a row of logits (upstream: vllm/v1/worker/gpu/sample/)."""
