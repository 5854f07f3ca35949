"""The embedded engine: an OpenAI-compatible server paced by `engine` in real time."""
