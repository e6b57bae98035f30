"""learnvllm: how vLLM works, taught by a small vLLM that serves a real model on a CPU."""
