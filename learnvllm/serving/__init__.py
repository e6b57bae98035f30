"""Day 11 · Serving: from HTTP requests to token ids and back, as the OpenAI API words it.

On the way in a Renderer turns messages and prompts into token ids, the only thing an engine core sees. On the
way out the engine's front end (`engine_core.output_processor`) has made text of tokens and looked for stop
strings; here it is worded as responses or server-sent events. Upstream namesakes: vllm/entrypoints/,
vllm/renderers/.
"""
