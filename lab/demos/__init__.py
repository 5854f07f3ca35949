"""Demonstrations on real processes, one question each (`python -m lab demo`)."""
