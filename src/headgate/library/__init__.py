"""The gate inside a Python process: filled by the in-process gate."""
