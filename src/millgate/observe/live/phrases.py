"""Times, shares and reasons in plain words, for people in a hurry."""

from collections.abc import Mapping
from typing import Final

from millgate.core.words import Reason

REFUSED_BECAUSE: Final[Mapping[Reason, str]] = {
    Reason.SATURATED: "no stream was free",
    Reason.QUEUE_FULL: "the queue was full",
    Reason.DISPLACED: "returning clients were due",
    Reason.TOO_LATE: "it would have been late",
    Reason.EXPIRED: "it waited too long",
    Reason.QUOTA: "a quota was used up",
    Reason.TENANT_LIMIT: "the tenant was at its limit",
    Reason.RETRY_BUDGET: "it was retried too often",
    Reason.NO_ENGINE: "no engine was up",
    Reason.NO_LEASE: "the replica had no lease",
    Reason.DRAINING: "the gate was draining",
    Reason.TOO_LARGE: "it was too large",
    Reason.OVERLOADED_GATE: "the gate itself was too slow",
}
"""What follows "refused because"; `page/words.js` has the same."""


def seconds(value: float) -> str:
    """Return a time as people read it: 40 ms, 1.2 s, 42 s, 3 min, 2 h."""
    if value < 0.0005:
        return "0 s"
    if value < 0.0995:
        return f"{1000 * value:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7170 else f"{value / 3600:.0f} h"


def percent(share: float) -> str:
    """Return a share as whole per cent, and never "0 %" for something that is there."""
    return "under 1 %" if 0.0 < share < 0.005 else f"{100 * share:.0f} %"
