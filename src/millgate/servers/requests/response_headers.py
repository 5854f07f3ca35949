"""How an attempt is refused, and what our headers say on an answer or a refusal: what is left of a quota, how a request was changed."""

from time import time

from millgate.core.decisions import Admit, QuotaState, Reshaped, Yield
from millgate.core.words import Counted
from millgate.dialects.contract import Dialect
from millgate.dialects.quota_headers import write_anthropic, write_openai
from millgate.http1.wire.fields import ANSWER_RESERVED, header_lines
from millgate.servers.requests.fields import Pairs

_RESHAPED = b"x-millgate-reshaped"


def response_headers(decision: Admit, family: str) -> Pairs:
    """Return the headers that this admission adds to its answer."""
    pairs = quota_pairs(decision.quota, family) if decision.quota else []
    if decision.reshaped is not None:
        pairs.append((_RESHAPED, _words(decision.reshaped)))
    return pairs


def refusal(dialect: Dialect, decision: Yield, request_id: bytes) -> tuple[int, bytes, bytes, bool]:
    """Return the status, head, body and whether to close of this refusal."""
    if decision.counted is Counted.STREAMS:
        return dialect.refuser.too_many_sequences(int(decision.value), int(decision.bound), request_id)
    status, lines, body, close = dialect.refuser.refuse_in_lines(
        decision.reason, decision.retry_after_s, decision.retry, request_id
    )
    if decision.quota:
        lines += header_lines(quota_pairs(decision.quota, dialect.family), ANSWER_RESERVED)
    return status, lines, body, close


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
