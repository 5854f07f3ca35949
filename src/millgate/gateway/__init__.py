"""The process that serves: builds every room and takes it down again."""

from millgate.gateway.app import Gateway
from millgate.gateway.fleet import ask_engine
from millgate.gateway.reload import Configuration, Fetch, ReloadError
from millgate.gateway.serve import ProcessEnding, run, serve
from millgate.gateway.settings import AdminAddress, EngineAddress, GatewaySettings, LineAddress
from millgate.gateway.tls import TlsError, TlsFiles, listener_context

__all__ = [
    "AdminAddress",
    "Configuration",
    "EngineAddress",
    "Fetch",
    "Gateway",
    "GatewaySettings",
    "LineAddress",
    "ProcessEnding",
    "ReloadError",
    "TlsError",
    "TlsFiles",
    "ask_engine",
    "listener_context",
    "run",
    "serve",
]
