"""`learnvllm check`, `hint`, `day` … : arguments in, text or JSON out; what they do is in the modules beside.

learnvllm/cli has the table of them. Exit codes: 0 done or passed, 1 not passed, 2 asked wrongly.
"""
