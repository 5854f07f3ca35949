"""The newline-JSON door: uploads over TCP, one slot each, an explicit yield with a true hint."""

from headgate.servers.line.contract import LineLimits, LineRoute, LineSettings
from headgate.servers.line.door import LineDoor

__all__ = ["LineDoor", "LineLimits", "LineRoute", "LineSettings"]
