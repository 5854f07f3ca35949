"""How an attempt is refused, and what our headers say on an answer or a refusal: what is left of a quota, how a request was changed."""

from math import ceil
from time import time
from typing import Final

from millgate.core.decisions import Admit, QuotaState, Reshaped, Yield
from millgate.core.settings import QuotaLimit
from millgate.core.words import Counted, QuotaKind, Reason
from millgate.dialects.contract import Dialect
from millgate.dialects.quota_headers import go_duration, write_anthropic, write_openai
from millgate.http1.wire.fields import ANSWER_RESERVED, header_lines
from millgate.servers.requests.fields import Pairs

_RESHAPED = b"x-millgate-reshaped"
_COUNTS: Final = {
    QuotaKind.RPM: "requests a minute",
    QuotaKind.RPD: "requests a day",
    QuotaKind.TPM: "tokens a minute",
    QuotaKind.TPD: "tokens a day",
    QuotaKind.ITPM: "prompt tokens a minute",
    QuotaKind.OTPM: "output tokens a minute",
}
_OF_A_DAY: Final = (QuotaKind.RPD, QuotaKind.TPD)


def response_headers(decision: Admit, family: str) -> Pairs:
    """Return the headers that this admission adds to its answer."""
    pairs = quota_pairs(decision.quota, family) if decision.quota else []
    if decision.reshaped is not None:
        pairs.append((_RESHAPED, _words(decision.reshaped)))
    return pairs


def refusal(dialect: Dialect, decision: Yield, request_id: bytes) -> tuple[int, bytes, bytes, bool]:
    """Return the status, head, body and whether to close of this refusal."""
    status, lines, body, close = dialect.refuser.refuse_in_lines(
        decision.reason, decision.retry_after_s, decision.retry, request_id, _numbers(decision)
    )
    short_of = decision.short_of if decision.retry else None
    if short_of is not None and short_of.kind in _OF_A_DAY:
        # Where there are other replicas, one of them has it, and a kept connection leads to none.
        close = True
    if decision.quota:
        lines += header_lines(quota_pairs(decision.quota, dialect.family), ANSWER_RESERVED)
    return status, lines, body, close


def _numbers(decision: Yield) -> str:
    """Return what a client can act on: what it asked for and what there is; empty where nothing but the time is up to it."""
    reason, asked, most = decision.reason, decision.value, max(0.0, decision.bound)
    if reason is Reason.TENANT_LIMIT and asked >= most > 0.0:  # else it waits for its share
        return f"{asked:,.0f} of {most:,.0f}"
    if decision.counted is Counted.STREAMS:
        return f"it makes {asked:,.0f} sequences (n or best_of times its prompts), and no engine here runs more than {most:,.0f} at once"
    if reason is Reason.TOO_LARGE and asked > most > 0.0:
        # Claude Code reads "context window" in a 413, and then compacts its conversation; else it tells of a file above 32 MB.
        return f"it needs {asked:,.0f} tokens with its answer, and no context window or quota here holds more than {most:,.0f}"
    short_of = decision.short_of if reason is Reason.QUOTA else None
    if short_of is None:
        return ""
    here = " here" if decision.retry and short_of.kind in _OF_A_DAY else ""
    numbers = f"of {short_of.limit:,.0f} {_COUNTS[short_of.kind]} {most // 1:,.0f} are left{here}, and the request needs {asked:,.0f}"
    if decision.promised > 0.0:
        numbers += f"; {decision.promised:,.0f} are promised to clients that were told to come before it"
    if decision.retry:
        return numbers
    wait_s = (asked - decision.bound) / QuotaLimit(short_of.kind, short_of.limit).rate_per_s
    return f"{numbers}; there is enough in {go_duration(ceil(wait_s))} at the earliest"


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
