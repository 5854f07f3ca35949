"""What stands in the gate's place: HAProxy's configuration, and that it and a gate by flags start on free ports."""

import pytest

from millgate.demos.connection import GateAddress
from millgate.demos.stage import DemoStage, EngineSetup, fetch, find_haproxy, haproxy_config


def test_cap_queue_and_socket_are_in_the_configuration() -> None:
    lines = [line.strip() for line in haproxy_config(7, GateAddress("127.0.0.1", 9000), 16, 2.0).splitlines()]

    assert "bind fd@7" in lines
    assert "timeout queue 2000ms" in lines
    assert "server engine 127.0.0.1:9000 maxconn 16" in lines


def test_both_doors_lead_to_the_engine_with_the_same_cap() -> None:
    program = find_haproxy()
    if program is None:
        pytest.skip("haproxy is not installed")
    with DemoStage() as stage:
        engine = stage.start_engine(EngineSetup("demo", 10.0, 16))
        gate = stage.start_plain_gate(engine, 16, 2.5)
        peer = stage.start_haproxy(program, engine, 16, 2.0)

        assert fetch(peer.address, "/stats")["running"] == 0
        assert gate.state()["engines"][0]["limit"] == 16
        assert fetch(gate.address, "/v1/models")["data"]
