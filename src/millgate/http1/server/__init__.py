"""HTTP/1.1 on the server's side: framing, caps and deadlines; knows no gate."""

from millgate.http1.server.budget import ByteBudget, Share
from millgate.http1.server.contract import Application, Exchange, Headers, RefusedRequest, RequestHead
from millgate.http1.server.limits import ServerLimits
from millgate.http1.server.server import HttpServer

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
