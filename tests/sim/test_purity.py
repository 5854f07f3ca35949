"""The simulator stays out of the rooms that touch the network, whatever the package's front door imports."""

import subprocess
import sys


def test_a_whole_run_loads_no_event_loop_and_no_network_room() -> None:
    program = (
        "import sys; from lab.experiments.catalogue import run_arm; run_arm('sizing', 0, 1);"
        " print(sorted(name for name in sys.modules if name == 'asyncio' or name.startswith("
        "('millgate.runtime', 'millgate.servers', 'millgate.cluster', 'millgate.dialects', 'millgate.client'))))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "[]"
