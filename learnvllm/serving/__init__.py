"""Day 11 · Serving: from HTTP requests to token ids and back, as the OpenAI API words it.

On the way in a Renderer turns messages and prompts into token ids, the only thing an engine core sees. On the
way out the engine's front end (`engine_core.output_processor`) has made text of tokens and looked for stop
strings; here it is worded as responses or server-sent events. Begin with `api_server.py`, the routes, and
`serving_chat.py`, what the most used one does. `chat.py`, `generate.py` and `bench.py` are commands of the
terminal. Upstream namesakes: vllm/entrypoints/, vllm/renderers/.
"""
