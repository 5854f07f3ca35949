"""The operator's door: health, metrics, state, explanations."""
