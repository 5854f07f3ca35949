"""Appointments: which refused clients were told to return when, and whether an arrival is one of them.

A yield with a hint is a promise, and keeping it takes two memories of one small record:

- the *record* recognises the request when it returns (same tenant, same fingerprint), so that it gets its
  `first_seen` back and is no stranger at the end of the line;
- its *appointment* counts it, until it returns, among those that are ahead of later hints.

An arrival takes out the match that was due first: among equal bodies that is the oldest. If the request is refused again it
leaves a new record with its old `first_seen` and number, so it stands in the line by its first age. A hang-up before the
first token leaves a record without an appointment: a user who presses refresh is the same user, but was promised nothing.

Appointments are fair among tenants of equal weight. Each gets a *turn*, the next after its tenant's last one, or the
turn that is being served if its tenant has no other. The line is ordered by turn, and within a turn by age. This is
start-time fair queueing (Goyal, Vin and Cheng 1996) with one appointment as the unit of work. Of T tenants with long
lines each is promised one permit in T, and no two clients are promised the same permit.
An appointment that is put before an older one is ranked as old as that, so that queues keep the line's order when both are back.

One bound holds for the memory; beyond it the longest line loses its newest appointment (INV-5). What has lapsed is
forgotten a few records per event, so that a crowd that never returned stalls no other request.
Every tolerance of a hint stands here, and nowhere else.
"""

from enum import IntEnum
from typing import Final

from millgate.core.measure import ALIKE

# Hints start at 0.1 s, so no client that waits for one is back sooner: equal bodies that arrive together are
# different requests.
SOONEST_RETURN_S: Final = 0.1
# So much before or after its hint a client is on time, and so long it is queued when it is due, even where nothing else is.
TOLERANCE_S: Final = 1.0
# Of a long hint this share is no longer late.
LATE_SHARE: Final = ALIKE
# A promise is kept when its client is admitted within the longer of these two after its hint, or after its later return.
# Hints are measured by it: a client cannot tell less apart.
KEPT_S: Final = 0.5
KEPT_SHARE: Final = 0.2
# From this early return on a request stands at the end of the line at each: a client that polls keeps no turn.
EARLY_RETURNS_FORGIVEN: Final = 2


class ClientKind(IntEnum):
    """What is known of a client beside its tenant: it was told for the first time, or has returned before."""

    FIRST = 0
    RETURNED = 1
