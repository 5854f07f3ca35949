"""The external processor: Envoy carries bytes, and asks here where they go, when, and whether at all."""
