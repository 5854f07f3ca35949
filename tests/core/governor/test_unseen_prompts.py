"""Prompts of whole answers: no event says when an engine has read one."""

from core.world import governor, steady_prior
from millgate.core.events import Arrived, Finished, Released, Tick
from millgate.core.settings import EngineSettings, LaneSettings


def test_a_prompt_that_had_to_wait_for_its_turn_is_believed_to_be_read_once() -> None:
    """The time at which it would have given up the queue came while it ran, and it counted as read a second time."""
    lane = LaneSettings("lane", ttft_slo_s=8.0, deadline_s=8.0)
    gate = governor(lane, engines=(EngineSettings("engine", 1, prior=steady_prior(4.0)),))
    service = gate._knowledge.engines.by_name["engine"].service
    for attempt in (1, 2):
        gate.handle(Arrived(attempt, prompt_bytes=4_000, max_tokens=100, stream=False), 0.0)
    gate.handle(Tick(), 1.0)
    gate.handle(Finished(1, None, 100), 4.0)
    gate.handle(Released(1), 4.0)
    read = service.has_read(0)

    while (wake := gate.next_wake()) is not None and wake < 30.0:
        gate.handle(Tick(), wake)

    assert gate.snapshot(30.0).engines[0].running == 1
    assert service.has_read(0) - read == 1_000
