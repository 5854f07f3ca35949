"""The Envoy external processor: filled by the fleet."""
