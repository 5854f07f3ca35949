"""Little's law as an instrument, and what its numbers foretell."""
