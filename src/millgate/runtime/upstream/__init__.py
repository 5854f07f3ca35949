"""The pooled HTTP/1.1 client."""

from millgate.runtime.upstream.contract import AnswerHead, Call, Ear, Receiver, Upstream
from millgate.runtime.upstream.pool import UpstreamPool
from millgate.runtime.upstream.settings import UpstreamSettings

__all__ = ["AnswerHead", "Call", "Ear", "Receiver", "Upstream", "UpstreamPool", "UpstreamSettings"]
