"""The pooled HTTP/1.1 client."""

from millgate.http1.client.contract import AnswerHead, Call, Ear, Receiver, Upstream
from millgate.http1.client.pool import UpstreamPool
from millgate.http1.client.settings import UpstreamSettings

__all__ = ["AnswerHead", "Call", "Ear", "Receiver", "Upstream", "UpstreamPool", "UpstreamSettings"]
