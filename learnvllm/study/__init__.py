"""The companion: exercises and their graders, the loop around them, notebooks, the site.

An exercise's starter is generated from the reference and its grader must kill every plausible wrong version,
so neither can drift from the engine. Nothing below this package knows of it; it may import everything.
"""
