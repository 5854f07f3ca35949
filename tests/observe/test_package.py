"""Importing the room costs nothing: the simulator and the library do it."""

import subprocess
import sys


def _loaded(code: str, names: tuple[str, ...]) -> str:
    """Return which of these modules a fresh interpreter has loaded after this code, as it prints them."""
    code = f"import sys; {code}; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout


def test_importing_observe_loads_no_exporter_and_no_loop() -> None:
    assert _loaded("import millgate.observe", ("asyncio", "prometheus_client", "logging")) == "[]\n"


def test_telling_the_build_loads_nothing_of_the_simulator() -> None:
    code = "from millgate.observe.build import build_kind; build_kind()"
    heavy = ("millgate.engine", "millgate.sim.loop", "millgate_simulating__mypyc")

    assert _loaded(code, heavy) == "[]\n"
