"""The pooled HTTP/1.1 client."""

from headgate.runtime.upstream.contract import AnswerHead, Call, Ear, Receiver, Upstream
from headgate.runtime.upstream.pool import UpstreamPool
from headgate.runtime.upstream.settings import UpstreamSettings

__all__ = ["AnswerHead", "Call", "Ear", "Receiver", "Upstream", "UpstreamPool", "UpstreamSettings"]
