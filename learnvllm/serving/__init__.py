"""Day 11 · Serving: from HTTP requests to token ids and back, as the OpenAI API words it.

Text lives in this package only: a Renderer turns messages into token ids, the engine sees nothing else, and
what comes back is worded as responses or server-sent events. Upstream namesakes: vllm/entrypoints/,
vllm/renderers/.
"""
