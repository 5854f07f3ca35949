"""Experiments on the core itself, outside the wheel: `python -m lab`."""
