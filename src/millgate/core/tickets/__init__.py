"""The places of yielded clients: who was told to come back when, and who is that now coming back.

A yield with a hint is a promise, and keeping it takes two memories of one small record:

- the *entry* recognises the request when it returns (same tenant, same fingerprint), so that it gets its
  `first_seen` back and is not a stranger at the end of the line;
- the *place* counts it, until it returns, among those who are ahead of later hints.

An arrival takes out the match that was due first (among equal bodies hints follow age, so that is the oldest, and
it is who is most likely to be back now); if it is refused again it leaves a new record with its old `first_seen`
and its old number, so its place in the line is as old as the request. Hang-ups before the first token leave an entry
without a place: somebody who presses refresh is the same user, but was promised nothing.

Places are fair among tenants of equal weight: a place gets a *turn*, the next after its tenant's last one, or the
turn that is being served if its tenant has no place; the line is ordered by turn, and within a turn by age. This is
start-time fair queueing (Goyal, Vin and Cheng 1996) with one place as the unit of work. So of T tenants with long
lines each is promised one place in T, a tenant alone gets all, a short line never slows the long one down by more
than its length, and no two clients are promised the same place: an engine that serves the line is never idle.
A place that is put before an older one is ranked as old as that, so that queues keep the line's order when both are back.

A record is a row of machine numbers: no object, nothing for the garbage collector. The memory is
one global bound; beyond it the longest line loses its newest place (INV-5). What has run out is forgotten a few
records per event, so that a crowd that never came back stalls nobody.
"""

from millgate.core.tickets.appointment import (
    EARLY_RETURNS_FORGIVEN,
    KEPT_SHARE,
    SOONEST_RETURN_S,
    Appointment,
    kept_within_s,
    shortest_kept_s,
)
from millgate.core.tickets.attendance import Attendance, ClientKind
from millgate.core.tickets.entry import Entry
from millgate.core.tickets.places import FORGOTTEN_PER_EVENT, WORK_PARTS, LineStanding, Places, as_parts
from millgate.core.tickets.records import MOST_PLACES, age_key

__all__ = [
    "EARLY_RETURNS_FORGIVEN",
    "FORGOTTEN_PER_EVENT",
    "KEPT_SHARE",
    "MOST_PLACES",
    "SOONEST_RETURN_S",
    "WORK_PARTS",
    "Appointment",
    "Attendance",
    "ClientKind",
    "Entry",
    "LineStanding",
    "Places",
    "age_key",
    "as_parts",
    "kept_within_s",
    "shortest_kept_s",
]
