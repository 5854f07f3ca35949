"""The stage of `lab demo provider`: the emulated provider and a gate that is told what it grants, each a process."""

import json
import sys
from typing import Any, NamedTuple

from lab.demos.provider_emulator import ProviderSetup
from millgate.demos.connection import GateAddress
from millgate.demos.processes import Child
from millgate.demos.stage import HOST, DemoStage, RunningGate, fetch

INFLIGHT = 1000
"""More than the account could keep busy: its limits bind, not the gate's number of streams."""
_EMULATOR = (sys.executable, "-m", "lab.demos.provider_emulator")
_READY = {"door": r"provider ready .*\bdoor=(\d+)", "counters": r"provider ready .*\bcounters=(\d+)"}


class RunningProvider(NamedTuple):
    """An emulated provider that answers; `counters` is where it tells what it has counted."""

    child: Child
    address: GateAddress
    counters: GateAddress

    def count_anew(self) -> None:
        """Begin every count anew."""
        fetch(self.counters, "/anew")

    def counts(self) -> dict[str, Any]:
        """Read its counts (`provider_emulator.counts`)."""
        return fetch(self.counters, "/counts")


class ProviderStage(DemoStage):
    """A stage on which a provider may run as well."""

    def start_provider(self, setup: ProviderSetup) -> RunningProvider:
        """Start the emulator of this account and wait until it listens."""
        child = self._children.start([setup.as_argument()], _EMULATOR)
        doors = child.await_ready(_READY)
        return RunningProvider(
            child, GateAddress(HOST, int(doors["door"])), GateAddress(HOST, int(doors["counters"]))
        )

    def start_account_gate(self, provider: RunningProvider, setup: ProviderSetup) -> RunningGate:
        """Start a gate that knows this account's limits, and nothing of the provider's speed."""
        file = self.file("provider-gate.yaml", json.dumps(gate_config(provider.address, setup)))
        return self.start_gate("--config", str(file))


def gate_config(provider: GateAddress, setup: ProviderSetup) -> dict[str, Any]:
    """Write the configuration of a gate before this account."""
    account = {**dict(setup.limits), "output": setup.output}
    url = f"http://{provider.host}:{provider.port}"
    engine = {"name": "provider", "url": url, "max_inflight": INFLIGHT, "account": account}
    return {"listen": {"port": 0}, "admin": {"port": 0}, "engines": [engine]}
