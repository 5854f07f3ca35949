"""The only composer of the core's policies."""

from millgate.core.governor.governor import Governor

__all__ = ["Governor"]
