"""The newline-JSON door: uploads over TCP, one slot each, an explicit yield with a true hint."""

from millgate.servers.line.contract import LineLimits, LineSettings
from millgate.servers.line.door import LineDoor

__all__ = ["LineDoor", "LineLimits", "LineSettings"]
