"""What our own headers say on an answer or a refusal: what is left of a quota, and how a request was changed."""

from time import time

from millgate.core.decisions import Admit, QuotaState, Reshaped
from millgate.dialects.quota_headers import write_anthropic, write_openai
from millgate.servers.http.fields import Pairs

_RESHAPED = b"x-millgate-reshaped"


def response_headers(decision: Admit, family: str) -> Pairs:
    """Return the headers that this admission adds to its answer."""
    pairs = quota_pairs(decision.quota, family) if decision.quota else []
    if decision.reshaped is not None:
        pairs.append((_RESHAPED, _words(decision.reshaped)))
    return pairs


def quota_pairs(states: tuple[QuotaState, ...], family: str) -> Pairs:
    """Return what is left of these quotas in the headers of a family of SDKs."""
    if family == "anthropic":
        return list(write_anthropic(states, time()))
    return list(write_openai(states))


def _words(reshaped: Reshaped) -> bytes:
    parts = []
    if reshaped.max_tokens is not None:
        parts.append(b"clip=%d" % reshaped.max_tokens)
    if reshaped.lane is not None:
        parts.append(b"lane=" + reshaped.lane.encode())
    return b", ".join(parts)
