"""The HTTP door: dialect in, decision out, relay between."""

from millgate.servers.http.contract import CoalescingSettings, DoorSettings
from millgate.servers.http.cross_origin import CrossOrigin
from millgate.servers.http.door import HttpDoor

__all__ = ["CoalescingSettings", "CrossOrigin", "DoorSettings", "HttpDoor"]
