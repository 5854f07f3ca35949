"""The client side: transports for the SDKs (`for_httpx2`, `for_httpx`) and a client of the line door (`line`)."""

from millgate.client.home import Manners
from millgate.client.pace import Limits

__all__ = ["Limits", "Manners"]
