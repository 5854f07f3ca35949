"""What refinements of placement are measured on: agents and people before several engines, and long prompts among them.

Figures of closed loops are no shares, so each run shows a hundredth of its logarithm: differences are percent, nearly.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import log

from lab.experiments import agent_sessions, cold_prompts, giants
from lab.experiments.agent_sessions import AgentScene
from lab.experiments.cold_prompts import ColdScene
from lab.experiments.giants import GiantScene
from lab.suite import Run, Shown, Suite

_UNTIL_S = 1_200.0
_AGENTS = AgentScene(order="short_first", until_s=_UNTIL_S)
_COLD = ColdScene(until_s=_UNTIL_S)


def _sessions(scene: AgentScene, seed: int) -> Shown:
    """Turns that were good, and sessions that were given up, a minute."""
    shown = agent_sessions.play(scene, seed)
    return {"turns": log(shown["good_per_minute"]), "given_up": shown["given_up_per_minute"]}


def _cold(scene: ColdScene, seed: int) -> Shown:
    """The p95 of the time to first token, of warm turns and of cold prompts, and how many of these were answered."""
    shown = cold_prompts.play(scene, seed)
    return {
        "warm": log(shown["warm_ttft_p95_s"]),
        "cold": log(shown["cold_ttft_p95_s"]),
        "answered": log(shown["cold_per_minute"]),
    }


def _giants(scene: GiantScene, seed: int) -> Shown:
    """People who had a first token in time, and giants that had one at all, a minute and engine."""
    shown = giants.play(scene, seed)
    return {"goodput": shown["people_good_share"], "giants": shown["giants_per_minute"]}


def _of_agents() -> Mapping[str, Run]:
    scenes = ((1, 1.5), (1, 3.0), (8, 1.0), (8, 2.0), (8, 3.0))
    return {
        f"{engines} engines, {times:g} times their memory": partial(
            _sessions, replace(_AGENTS, engines=engines, working_set=times)
        )
        for engines, times in scenes
    }


def _of_cold() -> Mapping[str, Run]:
    scenes = ((0.4, 1), (0.4, 0), (0.6, 1))
    return {
        f"{share:g} of the memory, {named=}": partial(_cold, replace(_COLD, working_set=share, named=named))
        for share, named in scenes
    }


def _of_giants() -> Mapping[str, Run]:
    return {
        f"{engines} engines, {per_minute:g} a minute": partial(
            _giants, GiantScene(engines=engines, giants_per_minute=per_minute)
        )
        for engines, per_minute in ((1, 0.6), (1, 1.8), (4, 1.8))
    }


FLEET_SUITES: Mapping[str, Suite] = {
    "agents": Suite("`agent_sessions`: agents whose contexts do, or do not, fit", 4, _of_agents()),
    "agents, few slots": Suite(
        "the same before eight engines that run four requests each",
        6,
        {
            f"{times:g} times their memory": partial(
                _sessions, replace(_AGENTS, engines=8, slots=4, working_set=times)
            )
            for times in (1.0, 1.5)
        },
    ),
    "people": Suite(
        "the same with people who chat, before four engines",
        4,
        {
            "twice their memory": partial(
                _sessions, replace(_AGENTS, engines=4, users="people", working_set=2.0, until_s=900.0)
            )
        },
    ),
    "cold": Suite(
        "`cold_prompts`: six prompts of 100,000 tokens a minute among agents, before eight engines",
        12,
        _of_cold(),
    ),
    "giants": Suite("`giant_prompts`: prompts that are read for longer than people wait", 4, _of_giants()),
}
