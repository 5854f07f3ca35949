"""May this tenant? Continuous buckets: filled by the policies."""
