"""Ways to compute with many experts, one a file; which of them runs is `oracle.py`'s choice."""
