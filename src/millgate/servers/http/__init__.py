"""The HTTP door: dialect in, decision out, relay between."""

from millgate.servers.http.contract import DoorSettings, EngineRoute
from millgate.servers.http.door import HttpDoor

__all__ = ["DoorSettings", "EngineRoute", "HttpDoor"]
