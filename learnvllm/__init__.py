"""learnvllm: how vLLM works, taught by a small vLLM that serves a real model on a CPU.

Importing this package loads nothing else: each topic is imported on first use, so that `learnvllm --help` and
the torch-free parts (architecture, scheduling, the block pool) start in milliseconds.
"""

__version__ = "0.1.0"
