"""A cluster of real processes under faults: what becomes of caps, quotas and answers."""
