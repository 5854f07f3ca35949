"""May this tenant, and will the provider? Continuous buckets: reserved on admission, settled with what was used."""
