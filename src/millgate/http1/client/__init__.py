"""The pooled HTTP/1.1 client."""

from millgate.http1.client.contract import AnswerHead, Call, Ear, Receiver, Upstream
from millgate.http1.client.pool import UpstreamPool
from millgate.http1.client.settings import UpstreamSettings
from millgate.http1.client.tunnel import Proxy

__all__ = ["AnswerHead", "Call", "Ear", "Proxy", "Receiver", "Upstream", "UpstreamPool", "UpstreamSettings"]
