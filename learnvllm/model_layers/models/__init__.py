"""One file an architecture, each a page that reads top to bottom. `registry.py` finds them by model_type."""
