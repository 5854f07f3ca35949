"""What the admin door shows, handed in as small callables: it knows no gateway, no driver and no governor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headgate.core.decisions import Explanation
from headgate.core.events import Arrived
from headgate.core.snapshot import Snapshot


class Readiness(NamedTuple):
    """Whether a load balancer should send work here, and why: `detail` names each part and its state."""

    ready: bool
    detail: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Views:
    """Everything that may be asked; each callable is quick, synchronous, and changes nothing.

    `explain` answers what the arrival would be told now; `render_metrics` takes an Accept header and returns the
    text and its content type.
    """

    snapshot: Callable[[], Snapshot]
    explain: Callable[[Arrived], Explanation]
    ready: Callable[[], Readiness]
    render_metrics: Callable[[str], tuple[bytes, str]]
