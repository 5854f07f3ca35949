"""The pooled HTTP/1.1 client."""

from millgate.http1.client.connecting import Proxy
from millgate.http1.client.contract import AnswerHead, Call, Ear, Receiver, Upstream, UpstreamSettings
from millgate.http1.client.pool import UpstreamPool

__all__ = ["AnswerHead", "Call", "Ear", "Proxy", "Receiver", "Upstream", "UpstreamPool", "UpstreamSettings"]
