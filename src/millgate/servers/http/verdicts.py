"""What an engine's error answer says of whose fault it is."""

from typing import Final

from millgate.core.words import FailureKind
from millgate.runtime.metered import lacks_credit, named_limit
from millgate.runtime.upstream import AnswerHead
from millgate.runtime.upstream.statuses import blames_request
from millgate.servers.http.contract import Said
from millgate.servers.http.fields import hint_s

OVERLOADED: Final = (429, 503, 529)
_OVER_LIMIT: Final = 429


def verdict(head: AnswerHead, body: bytes) -> tuple[FailureKind, Said]:
    """Return how this error answer counts, and what it says beside: a hint, a limit, or that the request is at fault."""
    status, hint = head.status, hint_s(head.headers)
    if lacks_credit(status, body):
        return FailureKind.NO_CREDIT, Said()
    if status in OVERLOADED:
        over = status == _OVER_LIMIT
        return FailureKind.REFUSED, Said(hint, over, named_limit(body) if over else None)
    return FailureKind.STATUS, Said(hint, blames_request=blames_request(status))
