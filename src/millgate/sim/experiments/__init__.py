"""Experiments: each one question, one picture, at least five seeds, everything on common random numbers."""
