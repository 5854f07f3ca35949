"""A worker that stands still, as its operator and its clients see it."""

import json
import os
import signal
import time

from gateway.workers.stand import Gate, answered, fetch, until, users_of


def test_a_probe_does_not_wait_for_a_worker_that_hangs(gate: Gate) -> None:
    """A probe of Kubernetes waits for two seconds: it took the whole gate out for as long as one worker stood still."""
    hung = min(gate.processes().values())
    os.kill(hung, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert fetch(gate.admin, "/readyz")[0] == 200
        assert time.monotonic() - began < 2.0
    finally:
        os.kill(hung, signal.SIGCONT)


def test_a_worker_that_hangs_is_named_within_seconds_and_a_neighbour_takes_its_clients(gate: Gate) -> None:
    """For 33 s the gate said that it was calm, every question took 5 s, and each second connection waited for the hung worker."""
    number, hung = min(gate.processes().items())

    def verdict() -> dict[str, str]:
        told: dict[str, str] = gate.state()["verdict"]
        return told

    assert verdict()["text"] == "Calm"
    os.kill(hung, signal.SIGSTOP)
    try:
        until(lambda: verdict()["level"] == "warned", 6.0)
        assert verdict()["text"].endswith(f" from worker {number} (process {hung})")
        assert [each["ready"] for each in gate.state()["workers"]] == [False, True]
        began = time.monotonic()
        ready, not_kept = fetch(gate.admin, "/readyz"), fetch(gate.admin, "/api/why?id=gone")
        assert gate.metric("millgate_workers") == 1
        assert time.monotonic() - began < 2.0
        assert ready[0] == 200
        assert json.loads(ready[1])["detail"][f"worker {number}"].startswith("no answer for ")
        assert json.loads(ready[1])["detail"]["workers"] == "1 of 2"
        assert not_kept[0] == 503
        assert f"worker {number} (process {hung})" in json.loads(not_kept[1])["error"]["message"]
        assert answered(gate, 16) == {200}
    finally:
        os.kill(hung, signal.SIGCONT)
    until(lambda: verdict()["text"] == "Calm")
    until(lambda: gate.events("worker answers again"))
    assert [line["process"] for line in gate.events("worker does not answer")] == [hung]
    with users_of(gate.url, [1, 1]):  # each accepts again
        assert gate.processes()[number] == hung
