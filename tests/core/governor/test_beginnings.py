"""While little has ended, what runs is evidence too."""

from millgate.core.decisions import Admit
from millgate.core.events import Arrived, EngineProgress, Finished, FirstToken, Growth, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.wiring.governor import build_governor

PRIOR = ServicePrior(0.0, 0.0, 0.01, 0.0)
RUNNING = 8


def begun(lengths: list[int], *, exact: bool) -> Governor:
    """Return a gate of which those of these answers have ended that have at most 200 tokens, two seconds after it began."""
    gate = build_governor(Settings((LaneSettings("lane"),), (EngineSettings("e", 64, prior=PRIOR),)), 0.0)
    for number, length in enumerate(lengths, 1):
        arrived = Arrived(number, prompt_bytes=400, stream=True, max_tokens=length if exact else 4096)
        assert isinstance(gate.handle(arrived, 0.0)[0], Admit)
        gate.handle(FirstToken(number), 0.0)
    for number, length in enumerate(lengths, 1):
        if length <= 200:
            gate.handle(Finished(number, 100, length), length * 0.01)
            gate.handle(Released(number), length * 0.01)
    return gate


def look(gate: Governor, lengths: list[int], so_far: int) -> None:
    streams = [Growth(number, so_far) for number, length in enumerate(lengths, 1) if length > 200]
    gate.handle(EngineProgress("e", tuple(streams)), 2.0)


def expected_tokens(gate: Governor) -> int:
    return gate.explain(Arrived(1_000, prompt_bytes=400, stream=True, max_tokens=4096), 2.0).output_tokens


UNEVEN = [60, 90, 120, 150, 180, 200, 700, 800, 900, 1000]


def test_newcomers_are_sized_by_those_that_run_as_well() -> None:
    gate = begun(UNEVEN, exact=False)
    before = expected_tokens(gate)
    look(gate, UNEVEN, 200)

    assert expected_tokens(gate) > 1.1 * before


def test_a_gate_whose_answers_have_all_ended_is_none_the_wiser() -> None:
    gate = begun(UNEVEN[:6], exact=False)
    before = expected_tokens(gate)
    look(gate, UNEVEN[:6], 200)

    assert expected_tokens(gate) == before


def test_what_runs_is_foreseen_by_its_bound_once_bounds_are_what_answers_are() -> None:
    """It began when 256 tokens were believed of everybody."""
    gate = begun(UNEVEN, exact=True)
    longest = gate._knowledge.attempts.by_number[10]
    engine = gate._knowledge.engines.by_name["e"]
    assert longest.permit is not None
    before_s = engine.foreseen_s(longest.permit)
    look(gate, UNEVEN, 200)

    assert before_s < 3.0
    assert engine.foreseen_s(longest.permit) > 8.0
    assert longest.request.output_tokens == 256
