"""telemetry_delay and abort_lag: what the gate's picture of its engines is worth when clients leave."""

from dataclasses import replace

from lab.experiments.scenario import Played, Scenario, play
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Refreshing
from millgate.sim.experiments.contract import Arm, Experiment, Measured
from millgate.sim.fleet import EngineManners
from millgate.sim.laws import exponential, lognormal

_DELAYS_S = (0.0, 0.2, 1.0, 2.0, 5.0)
_LAGS_S = (0.0, 0.3, 1.0, 3.0, 10.0)
# Users that close the page midway make permits hard to count.
_USERS = Manners(lognormal(4.0, 0.5), Refreshing(), stop_share=0.4, stops_reading=exponential(1.0))
_SCENARIO = replace(
    Scenario(engines=2, manners=_USERS, engine_manners=EngineManners(abort_lag_s=0.3)).at_load(1.5),
    until_s=120.0,
)
# Here the cap is the engine's own batch. Below it what an engine does for the departed runs beside the cap, and a gate that
# forgets them wins by breaking it: with a cap of 64 on an engine that runs 256, 0.76 of capacity against 0.63.
_FULL_BATCH = replace(_SCENARIO, max_inflight=256)


def _shown(x: float, played: Played) -> Measured:
    summary = played.summary
    return [
        (
            x,
            {
                "goodput": played.goodput_share,
                "good": summary.good_share,
                "waste": summary.waste,
                "ttft_p99_s": summary.ttft_s.p99,
                "tpot_p99_s": summary.tpot_s.p99,
            },
        )
    ]


def _run_delay(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    ignores = arm.series == "engine ignores hang-ups"
    manners = EngineManners(abort_lag_s=0.3, ignores_hangups=ignores)
    played = play(replace(_SCENARIO, telemetry_delay_s=arm.x, engine_manners=manners), seed)
    return _shown(arm.x, played)


def _run_lag(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    delay_s = 0.0 if arm.series == "gauges read" else 1e9
    manners = EngineManners(abort_lag_s=arm.x)
    return _shown(arm.x, play(replace(_FULL_BATCH, telemetry_delay_s=delay_s, engine_manners=manners), seed))


TELEMETRY_DELAY = Experiment(
    name="telemetry_delay",
    question="What is lost when the engines' gauges are old?",
    arms=tuple(
        Arm(series, delay)
        for series in ("engine lets go after 0.3 s", "engine ignores hang-ups")
        for delay in _DELAYS_S
    ),
    run=_run_delay,
    metric="goodput",
    x_label="age of the gauges, seconds",
    y_label="good answers, share of capacity",
)

ABORT_LAG = Experiment(
    name="abort_lag",
    question="Phantom load: what does it cost when engines work on for clients that have left?",
    arms=tuple(Arm(series, lag) for series in ("gauges read", "gauges lost") for lag in _LAGS_S),
    run=_run_lag,
    metric="goodput",
    x_label="seconds that an engine works on after a hang-up",
    y_label="good answers, share of capacity",
)
