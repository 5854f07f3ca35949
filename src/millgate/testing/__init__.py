"""The shipped kit for tests of gateways: a proxy of faults.

`FaultProxy` runs inside an event loop (`async with`) or in a thread of its own (`with`).
"""

from millgate.testing.fault_proxy import NO_FAULTS, FaultProxy, Faults

__all__ = ["NO_FAULTS", "FaultProxy", "Faults"]
