"""Replicas of one gate share its limits: leases of shares over a store that all of them reach."""
