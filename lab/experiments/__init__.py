"""Experiments that reproduce a study: one question each, by name (`python -m lab run`)."""
