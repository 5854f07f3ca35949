"""The process that serves: builds every room and takes it down again."""

from headgate.gateway.app import Gateway
from headgate.gateway.fleet import ask_engine
from headgate.gateway.reload import Configuration, Fetch, ReloadError
from headgate.gateway.serve import Ending, run, serve
from headgate.gateway.settings import AdminAddress, EngineAddress, GatewaySettings, LineAddress
from headgate.gateway.tls import TlsError, TlsFiles, listener_context

__all__ = [
    "AdminAddress",
    "Configuration",
    "Ending",
    "EngineAddress",
    "Fetch",
    "Gateway",
    "GatewaySettings",
    "LineAddress",
    "ReloadError",
    "TlsError",
    "TlsFiles",
    "ask_engine",
    "listener_context",
    "run",
    "serve",
]
