"""HTTP/1.1 on the server's side: framing, caps and deadlines; knows no gate."""

from millgate.servers.http1.budget import ByteBudget, Share
from millgate.servers.http1.contract import Application, Exchange, Headers, RefusedRequest, RequestHead
from millgate.servers.http1.limits import ServerLimits
from millgate.servers.http1.server import HttpServer

__all__ = [
    "Application",
    "ByteBudget",
    "Exchange",
    "Headers",
    "HttpServer",
    "RefusedRequest",
    "RequestHead",
    "ServerLimits",
    "Share",
]
