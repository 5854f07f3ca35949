"""The shipped kit for tests of gateways: a proxy of faults, a clock that stands, a playbook.

`FaultProxy` runs inside an event loop (`async with`) or in a thread of its own (`with`).
"""

from millgate.testing.clock import ManualClock
from millgate.testing.fault_proxy import NO_FAULTS, FaultProxy, Faults
from millgate.testing.playbook import Playbook, PlaybookError

__all__ = ["NO_FAULTS", "FaultProxy", "Faults", "ManualClock", "Playbook", "PlaybookError"]
