"""Pages of other sites that may ask: the fields of the Fetch standard's CORS protocol, for origins that an operator names.

Keys travel in header fields, never in cookies, so credentials in the protocol's sense are not allowed. An engine's own fields of the
protocol never pass: which pages may ask is the gate's to say.
"""

import re
from collections.abc import Sequence
from typing import Final

from millgate.dialects.quota_headers import WRITTEN_NAMES
from millgate.dialects.ticket import HEADER as TICKET
from millgate.http1.server.contract import Exchange, RefusedRequest, RequestHead
from millgate.http1.wire.fields import ANSWER_RESERVED, header_lines
from millgate.servers.requests.fields import Pairs

ANY: Final = "*"
_OWN: Final = b"request-id retry-after retry-after-ms x-request-id x-should-retry x-millgate-reason".split()
_EXPOSED: Final = b", ".join((*_OWN, TICKET, *WRITTEN_NAMES))
"""What a page must read to keep a hint and its quotas; the other fields of an answer are not for pages."""
_NAMES: Final = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+(?: *, *[a-z0-9!#$%&'*+.^_`|~-]+)*", re.IGNORECASE)
_MOST_NAMES_BYTES: Final = 1024
_USUAL_NAMES: Final = b"authorization, content-type, x-api-key"


class CrossOrigin:
    """Allows these origins (`https://app.example`), or all by `*`; browsers may remember a permission for `max_age_s`."""

    def __init__(self, origins: Sequence[str], max_age_s: float) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._max_age = b"%d" % int(max_age_s)

    def permission(self, head: RequestHead) -> Pairs:
        """Return the fields that let the page of this request read the answer; none for other pages and other clients."""
        origin = head.header(b"origin")
        if origin is None or not (self._any or origin in self._origins):
            return []
        allowed = b"*" if self._any else origin
        return [
            (b"access-control-allow-origin", allowed),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]

    def adorn(self, exchange: Exchange) -> None:
        """Have the answer to a page that may ask say so."""
        permission = self.permission(exchange.head)
        if permission:
            exchange.adorn(header_lines(permission, ANSWER_RESERVED))

    def beside(self, refusal: RefusedRequest, head: RequestHead) -> RefusedRequest:
        """Return this refusal with what lets a page that may ask read it."""
        return refusal._replace(headers=[*refusal.headers, *self.permission(head)])

    def preflight(self, head: RequestHead, methods: Sequence[bytes]) -> RefusedRequest | None:
        """Answer what a browser asks before a page's request; None for what is no such question, or of another page."""
        permission = self.permission(head)
        if not permission or head.header(b"access-control-request-method") is None:
            return None
        names = head.header(b"access-control-request-headers") or _USUAL_NAMES
        if len(names) > _MOST_NAMES_BYTES or not _NAMES.fullmatch(names):
            names = _USUAL_NAMES
        fields = [
            *permission,
            (b"access-control-allow-methods", b", ".join(methods)),
            (b"access-control-allow-headers", names),
            (b"access-control-max-age", self._max_age),
        ]
        return RefusedRequest(200, fields, b"")
