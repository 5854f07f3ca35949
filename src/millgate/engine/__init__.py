"""How long an engine takes: step-time profiles and continuous batching, pure."""
