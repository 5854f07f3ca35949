"""Prometheus' own judge of metric pages finds nothing: neither an error nor a word of advice."""

import shutil
import subprocess

import pytest

from millgate.observe.door import DoorSnapshot, ServiceSnapshot
from millgate.observe.prometheus import Exposition
from observe.test_largest_gate import largest_gate
from observe.test_prometheus import SNAPSHOT, TRAFFIC

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of Debian's package prometheus")


@pytest.mark.parametrize("size", ["small", "largest"])
def test_promtool_finds_nothing_on_the_page(size: str) -> None:
    snapshot, traffic = (SNAPSHOT, TRAFFIC) if size == "small" else largest_gate()
    service = ServiceSnapshot(True, 1, 1, 0.0, 0.0, 1, 1)
    door = DoorSnapshot(1, 1, 1, 1, 1)
    page, _ = Exposition(lambda: snapshot, lambda: door, lambda: service, traffic.read).render()

    assert PROMTOOL is not None
    judged = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, check=False)

    assert (judged.returncode, judged.stdout + judged.stderr) == (0, b"")
