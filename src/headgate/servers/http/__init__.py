"""The HTTP door: dialect in, decision out, relay between."""

from headgate.servers.http.contract import DoorSettings, EngineRoute
from headgate.servers.http.door import HttpDoor

__all__ = ["DoorSettings", "EngineRoute", "HttpDoor"]
