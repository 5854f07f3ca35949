"""The shipped kit for tests of gateways: a scripted engine, a proxy of faults, a clock that stands, a playbook.

`FakeUpstream` and `FaultProxy` run inside an event loop (`async with`) or in a thread of their own (`with`).
"""

from millgate.testing.clock import ManualClock
from millgate.testing.fake_upstream import (
    FakeUpstream,
    Script,
    ScriptedConnection,
    ScriptedRequest,
    answer_politely,
)
from millgate.testing.fault_proxy import NO_FAULTS, FaultProxy, Faults
from millgate.testing.playbook import Playbook, PlaybookError

__all__ = [
    "NO_FAULTS",
    "FakeUpstream",
    "FaultProxy",
    "Faults",
    "ManualClock",
    "Playbook",
    "PlaybookError",
    "Script",
    "ScriptedConnection",
    "ScriptedRequest",
    "answer_politely",
]
