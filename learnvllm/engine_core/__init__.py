"""Day 2 · Engine core: the step loop, the process it lives in, and what turns text into tokens and back.

`core.py` is the loop; `core_proc.py` puts it in a process; `core_client.py` reaches it in this process,
`mp_client.py` in its own, over ZMQ; `input_processor.py` and `output_processor.py` are the two doors.
Upstream namesake: vllm/v1/engine/.
"""
