"""What the engine tells about itself: per-step figures in `stats.py`, who receives them in `loggers.py`.

Upstream namesake: vllm/v1/metrics/.
"""
