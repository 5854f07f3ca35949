"""The only composer of the core's policies."""

from headgate.core.governor.governor import Governor

__all__ = ["Governor"]
