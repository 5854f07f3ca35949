"""Which engine keeps an answer: a request for it by id must go to the engine that stored it.

Bounded: beyond `most` the answer that was named longest ago is forgotten, and asking for it is like asking for one
from before a restart. Where there are several tenants, an id that is not known is refused. An engine tells no tenants
apart, so a client that guessed or overheard an id would get what another tenant has stored. An answer to another tenant
and an answer that never was look the same.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from millgate.dialects.contract import BadInputError

MOST_KEPT: Final = 100_000
"""About 20 MB of ids."""


class Keeper(NamedTuple):
    """The engine that keeps an answer, and whose answer it is."""

    engine: str
    tenant: str


class KeptAnswers:
    """Ids of stored answers and their keepers."""

    __slots__ = ("_keepers", "_most")

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._keepers: OrderedDict[str, Keeper] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keepers)

    def add(self, answer_id: str, keeper: Keeper) -> None:
        """Remember the keeper of this answer; an id that is known stays with the tenant that had it first."""
        known = self._keepers.get(answer_id)
        if known is not None and known.tenant != keeper.tenant:
            return
        self._keepers[answer_id] = keeper
        self._keepers.move_to_end(answer_id)
        if len(self._keepers) > self._most:
            self._keepers.popitem(last=False)

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
    return BadInputError("no answer is kept under this id", field, status=404, code="not_found")
