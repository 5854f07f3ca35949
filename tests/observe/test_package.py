"""Importing the room costs nothing: the simulator and the library do it."""

import subprocess
import sys


def test_importing_observe_loads_no_exporter_and_no_loop() -> None:
    heavy = ("asyncio", "prometheus_client", "logging")
    code = f"import sys, millgate.observe; print([name for name in {heavy} if name in sys.modules])"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )

    assert loaded.stdout == "[]\n"
