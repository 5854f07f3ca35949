"""How many retries are too many: filled by the policies."""
