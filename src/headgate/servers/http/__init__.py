"""The HTTP door: dialect in, decision out, relay between."""
