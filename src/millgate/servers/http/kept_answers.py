"""Which engine keeps an answer: a request for it by id must go to the engine that stored it.

Bounded: beyond `most` the answer that was named longest ago is forgotten, and asking for it is like asking for one
from before a restart. Where there are several tenants, an id that is not known is refused. An engine tells no tenants
apart, so a client that guessed or overheard an id would get what another tenant has stored. An answer to another tenant
and an answer that never was look the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from millgate.dialects.contract import BadInputError

MOST_KEPT: Final = 100_000
"""About 20 MB of ids."""
NOT_KEPT: Final = "not_found"
"""The code of the complaint of `not_kept`."""


class Keeper(NamedTuple):
    """The engine that keeps an answer, and whose answer it is."""

    engine: str
    tenant: str


class KeptAnswers:
    """Ids of stored answers and their keepers; `on_new` hears of each that was not known, where other processes are to know it."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._keepers: OrderedDict[str, Keeper] = OrderedDict()
        self.on_new: Callable[[str, Keeper], None] | None = None

    def __len__(self) -> int:
        return len(self._keepers)

    def __iter__(self) -> Iterator[tuple[str, Keeper]]:
        return iter(self._keepers.items())

    def add(self, answer_id: str, keeper: Keeper, *, is_news: bool = True) -> None:
        """Remember the keeper of this answer; an id that is known stays with the tenant that had it first."""
        known = self._keepers.get(answer_id)
        if known is not None and known.tenant != keeper.tenant:
            return
        self._keepers[answer_id] = keeper
        self._keepers.move_to_end(answer_id)
        if len(self._keepers) > self._most:
            self._keepers.popitem(last=False)
        if known is None and is_news and self.on_new is not None:
            self.on_new(answer_id, keeper)

    def find(self, answer_id: str) -> Keeper | None:
        """Return the keeper of this answer, None when it is unknown."""
        keeper = self._keepers.get(answer_id)
        if keeper is not None:
            self._keepers.move_to_end(answer_id)
        return keeper

    def may_ask(self, answer_id: str, tenant: str, *, separates: bool) -> bool:
        """Say whether this tenant may name this answer to an engine; `separates` where there may be other tenants."""
        keeper = self.find(answer_id)
        return not separates if keeper is None else keeper.tenant == tenant


def not_kept(field: str | None = None) -> BadInputError:
    """Return the complaint of a request whose `field`, or path, names an answer that is not kept for its tenant."""
    return BadInputError("no answer is kept under this id", field, status=404, code=NOT_KEPT)
