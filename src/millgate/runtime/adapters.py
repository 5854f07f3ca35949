"""Which adapters (LoRA) does an engine have? vLLM lists them among its models, each with its `parent`; they come and go while it runs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from millgate.http1.client import Call, Upstream
from millgate.runtime.engines import POLL_S, Fetched, scrape
from millgate.runtime.gauges import MODEL_NAME

LOOK_S: Final = 5.0
"""Between two looks, as between two look-ups of a name."""
_WITHIN_S: Final = 1.0
_MOST: Final = 1_000

Adapters = Mapping[str, str]
"""The model of each adapter, by the adapter's name."""


class _Card(msgspec.Struct):
    id: str
    parent: str | msgspec.UnsetType | None = msgspec.UNSET


class _Listing(msgspec.Struct):
    data: list[_Card]


def read_adapters(page: bytes) -> Adapters | None:
    """Return the adapters on a page of models, the first thousand; None where the engine does not tell models from adapters."""
    try:
        cards = msgspec.json.decode(page, type=_Listing).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if all(card.parent is msgspec.UNSET for card in cards):
        return None
    found = ((card.id, card.parent) for card in cards if MODEL_NAME.fullmatch(card.id.encode()))
    return dict(islice(((name, parent) for name, parent in found if isinstance(parent, str)), _MOST))


class AdapterWatch:
    """Looks one engine's models over, and tells `on_list` which adapters are among them when two looks in a row, or the first, say so.

    It is asked once `is_wanted` says so. What cannot be read changes nothing.
    """

    def __init__(
        self,
        upstream: Upstream,
        target: bytes,
        headers: Callable[[], Sequence[tuple[bytes, bytes]]],
        is_wanted: Callable[[], bool],
        on_list: Callable[[Adapters], None],
    ) -> None:
        self._upstream, self._target, self._headers = upstream, target, headers
        self._is_wanted, self._on_list = is_wanted, on_list
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._call: Call | None = None
        self._seen: Adapters | None = None
        self._told: Adapters | None = None

    def start(self) -> None:
        """Look once that is wanted, and then again and again."""
        asks = self._is_wanted()
        self._timer = self._loop.call_later(LOOK_S if asks else POLL_S, self.start)
        if asks and self._call is None:
            self._call = scrape(self._upstream, self._target, _WITHIN_S, self._take, self._headers())

    def stop(self) -> None:
        """Look no more, and forget what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.abort()
            self._call = None

    def _take(self, fetched: Fetched) -> None:
        self._call = None
        found = None if fetched.body is None else read_adapters(fetched.body)
        if found is None:
            return
        is_sure = self._told is None or found == self._seen
        self._seen = found
        if is_sure and found != self._told:
            self._told = found
            self._on_list(found)
