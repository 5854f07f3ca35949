"""The client side: transports for the SDKs (`for_httpx2`, `for_httpx`) and a client of the line door (`line`)."""

from millgate.client.pacing import Limits
from millgate.client.session import HostSettings

__all__ = ["HostSettings", "Limits"]
