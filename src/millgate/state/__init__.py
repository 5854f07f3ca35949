"""Shares of quotas and limits held with others: filled by the fleet."""
