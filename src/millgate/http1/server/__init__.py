"""HTTP/1.1 on the server's side: framing, caps and deadlines; knows no gate."""

from millgate.http1.server.budget import ByteBudget
from millgate.http1.server.contract import Exchange, RefusedRequest, RequestHead, ServerLimits
from millgate.http1.server.server import HttpServer

__all__ = ["ByteBudget", "Exchange", "HttpServer", "RefusedRequest", "RequestHead", "ServerLimits"]
