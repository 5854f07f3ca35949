"""The process that serves: builds every room and takes it down again."""

from millgate.gateway.app import Gateway
from millgate.gateway.discovery import Discovery, DiscoverySettings
from millgate.gateway.fleet import answers, ask_engine
from millgate.gateway.reload import Configuration, Fetch, ReloadError
from millgate.gateway.serve import ProcessEnding, serve
from millgate.gateway.settings import (
    AdminAddress,
    ClusterSettings,
    EngineAddress,
    ExtprocAddress,
    GatewaySettings,
    LineAddress,
)
from millgate.gateway.tls import Certificate, TlsError, TlsFiles, engine_context, lifetimes, listener_context

__all__ = [
    "AdminAddress",
    "Certificate",
    "ClusterSettings",
    "Configuration",
    "Discovery",
    "DiscoverySettings",
    "EngineAddress",
    "ExtprocAddress",
    "Fetch",
    "Gateway",
    "GatewaySettings",
    "LineAddress",
    "ProcessEnding",
    "ReloadError",
    "TlsError",
    "TlsFiles",
    "answers",
    "ask_engine",
    "engine_context",
    "lifetimes",
    "listener_context",
    "serve",
]
