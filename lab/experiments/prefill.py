"""prefill_isolation: chat beside users of long prompts, one engine. What does chat see of them, and what is left to them?

Six chat users and some with long prompts think, ask and wait in turn. The gate learns how fast long prompts may come. Beside
it every fixed pace of a sweep is tried, with prompts paced alone. The best one that leaves chat as good as its objective
asks is the bound of every rule that gives the engine one long prompt after the other at a steady pace. Without the gate all
prompts go to the engine at once. In the reverse case chat floods, and the question is what the long lane reads. With `default lanes` no request names a lane and none is
configured but for chat's objectives.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lab.books import unread_books
from lab.closed_loop import ClosedLoop
from lab.default_gate import default_lanes, metered
from millgate.core.settings import TARGET_SHARE, LaneSettings, LimitSettings
from millgate.core.words import Outcome
from millgate.engine.profile import EngineProfile, find_profile, scaled
from millgate.sim.clients.crowd import Crowd, Manners
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics, SeriesPoint
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import Law, exponential, lognormal
from millgate.sim.loop import Loop
from millgate.sim.policies import OpenDoor
from millgate.sim.randomness import Streams
from millgate.sim.visit import Visit
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

_TTFT_SLO_S, _TPOT_SLO_S = 1.0, 0.05
_FROM_S, _UNTIL_S = 30.0, 240.0
_FLOOD_USERS: Final = 200
_UNNAMED: Final = "default lanes"
_NO_GATE: Final = "no gate"
_CHAT_PROMPT, _OUTPUT = lognormal(300.0, 0.1), lognormal(100.0, 0.1)
# The sweep: of what the engine could read of such prompts and nothing else.
_STEPS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Scene:
    """One engine, so many times as fast as its profile, and users; `prefill_rate` paces long prompts at a fixed rate."""

    profile: str = "demo"
    time_scale: float = 0.5
    prompt_tokens: int = 3_900
    long_users: int = 4
    chat_users: int = 6
    policy: str = "gate"
    prefill_rate: float | None = None


_SCENES: Final[Mapping[str, Scene]] = {
    "chat beside 4 x 3.9k": Scene(),
    "chat beside 8 x 3.9k": Scene(long_users=8),
    "chat beside 2 x 3.9k": Scene(long_users=2),
    "chat beside 4 x 8k": Scene(time_scale=1.0, prompt_tokens=8_000),
    "chat beside 4 x 8k, 70B H100": Scene("llama3-70b_h100_tp4", 1.0, 8_000),
    "chat beside 4 x 16k, 8B H100": Scene("llama3-8b_h100_tp1", 1.0, 16_000),
    "chat beside 4 x 3.9k, 70B A100": Scene("llama3-70b_a100_tp4", 1.0),
    "chat beside 4 x 16k, 70B A100": Scene("llama3-70b_a100_tp8", 1.0, 16_000),
    "chat floods 4 x 3.9k, 70B A100": Scene("llama3-70b_a100_tp4", 1.0, chat_users=_FLOOD_USERS),
    "chat floods 4 x 8k, 70B H100": Scene("llama3-70b_h100_tp4", 1.0, 8_000, chat_users=_FLOOD_USERS),
}


class _Heard(NamedTuple):
    """What one user heard of a request; virtual seconds. `first_token_at` is None where there was no answer."""

    kind: str
    asked_at: float
    first_token_at: float | None
    ended_at: float
    prompt_tokens: int
    output_tokens: int


def play(scene: Scene, seed: int) -> Metrics:
    """Return chat's good share and refusals, and the prompt tokens a second that were read of each lane."""
    loop, streams = Loop(), Streams(seed)
    fleet = _fleet(scene)
    core = OpenDoor(fleet.settings) if scene.policy == _NO_GATE else build_governor(fleet.settings, 0.0)
    world, heard = World(core, loop, unread_books()), list[_Heard]()
    fleet.populate(world, streams)
    world.start_watch()
    long_prompt = lognormal(float(scene.prompt_tokens), 0.05)
    for number, (lane, users, prompt, think_s) in enumerate(
        (("chat", scene.chat_users, _CHAT_PROMPT, 1.0), ("long", scene.long_users, long_prompt, 0.2))
    ):
        think = streams.draws("think", exponential(think_s).sample, number)
        asked = _jobs(lane, None if scene.policy == _UNNAMED else lane, prompt, streams, number)
        crowd = Crowd(world, Manners(), streams, number)
        ClosedLoop(world, crowd, asked, users, think, _UNTIL_S)
        _listen(crowd, loop, heard)
    loop.run(_UNTIL_S + 60.0)
    return _judged(heard)


def _listen(crowd: Crowd, loop: Loop, heard: list[_Heard]) -> None:
    """Write down what the users of a crowd hear, before they go on."""
    then = crowd.on_over
    assert then is not None

    def over(visit: Visit, outcome: Outcome | None) -> None:
        job, first_at = visit.job, visit.first_token_at
        heard.append(
            _Heard(job.tenant, visit.first_at, first_at, loop.now, job.prompt_tokens, job.output_tokens)
        )
        then(visit, outcome)

    crowd.on_over = over


def _jobs(tenant: str, lane: str | None, prompt: Law, streams: Streams, number: int) -> Iterator[Job]:
    prompts = streams.draws("prompts", prompt.sample, number)
    outputs = streams.draws("outputs", _OUTPUT.sample, number)
    while True:
        yield Job(0.0, max(1, int(prompts.next())), max(2, int(outputs.next())), tenant, lane)


def _fleet(scene: Scene) -> SimulatedFleet:
    profile = _profile(scene)
    is_gate = scene.policy in {"gate", _UNNAMED}
    lanes = _chat_first() if scene.policy == _UNNAMED else _own_lanes(scene, is_gate=is_gate)
    limit = LimitSettings("slo_gradient", tpot_slo_s=_TPOT_SLO_S) if is_gate else LimitSettings()
    return metered(uniform_fleet(profile, 1, lanes, limit=limit))


def _chat_first() -> tuple[LaneSettings, ...]:
    """Return the lanes of a configuration that names none, with chat's objectives by the flags of `serve`."""
    return default_lanes(ttft_slo=f"{_TTFT_SLO_S:g}s", tpot_slo=f"{_TPOT_SLO_S:g}s")


def _own_lanes(scene: Scene, *, is_gate: bool) -> tuple[LaneSettings, ...]:
    return (
        LaneSettings(
            "chat",
            ttft_slo_s=_TTFT_SLO_S,
            deadline_s=_TTFT_SLO_S,
            tpot_slo_s=_TPOT_SLO_S if is_gate else None,
            order="short_first",
            share=3.0,
            headroom=6,
        ),
        LaneSettings("long", ttft_slo_s=60.0, deadline_s=60.0, prefill_per_s=scene.prefill_rate),
    )


def _profile(scene: Scene) -> EngineProfile:
    profile = scaled(find_profile(scene.profile), scene.time_scale)
    # Of a small cache long prompts would wait for room, not for their pace.
    return replace(profile, kv_tokens=max(profile.kv_tokens, 8 * scene.prompt_tokens))


def _judged(heard: Sequence[_Heard]) -> Metrics:
    asked = [each for each in heard if _FROM_S <= each.asked_at < _UNTIL_S]
    chat = [each for each in asked if each.kind == "chat"]
    return {
        "good": sum(_is_good(each) for each in chat) / len(chat),
        "refused": sum(each.first_token_at is None for each in chat) / len(chat),
        "long_tokens_per_s": _read_per_s(each for each in asked if each.kind == "long"),
        "chat_tokens_per_s": _read_per_s(chat),
    }


def _is_good(heard: _Heard) -> bool:
    """Judge an answer as its user does."""
    if heard.first_token_at is None or heard.first_token_at - heard.asked_at > _TTFT_SLO_S:
        return False
    return heard.ended_at - heard.first_token_at <= _TPOT_SLO_S * max(1, heard.output_tokens - 1)


def _read_per_s(heard: Iterable[_Heard]) -> float:
    read = [each.prompt_tokens for each in heard if each.first_token_at is not None]
    return sum(read) / (_UNTIL_S - _FROM_S)


def best_fixed(scene: Scene, seed: int) -> Metrics:
    """Return what the best fixed pace gives: the most long tokens of all that leave chat as good as its objective asks."""
    most_per_s = 1e3 / _profile(scene).prefill_per_token_ms
    tried = [play(replace(scene, policy="fixed", prefill_rate=share * most_per_s), seed) for share in _STEPS]
    enough = [each for each in tried if each["good"] >= TARGET_SHARE]
    return max(enough, key=lambda each: each["long_tokens_per_s"]) if enough else tried[0]


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    scene = list(_SCENES.values())[int(arm.x) - 1]
    if arm.series == "best fixed pace":
        return [(arm.x, best_fixed(scene, seed))]
    return [(arm.x, play(replace(scene, policy=arm.series), seed))]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    by = {(place.series, place.x): place.metrics for place in places}
    found = {}
    for number, (name, scene) in enumerate(_SCENES.items(), 1):
        gate, fixed = by["gate", float(number)], by["best fixed pace", float(number)]
        read = gate["long_tokens_per_s"].mean
        if scene.chat_users >= _FLOOD_USERS:
            found[f"{name}: long part of what is read"] = read / (read + gate["chat_tokens_per_s"].mean)
            continue
        found[f"{name}: chat good"] = gate["good"].mean
        found[f"{name}: long tokens of the best fixed pace"] = read / max(
            1.0, fixed["long_tokens_per_s"].mean
        )
    return found


PREFILL_ISOLATION = Experiment(
    name="prefill_isolation",
    question="What does chat see of long prompts beside it, and how much of them is still read?",
    arms=tuple(
        Arm(series, float(number))
        for series in ("gate", _UNNAMED, "best fixed pace", _NO_GATE)
        for number in range(1, len(_SCENES) + 1)
    ),
    run=_run,
    metric="good",
    x_label="scene: " + "; ".join(f"{number} {name}" for number, name in enumerate(_SCENES, 1)),
    y_label="share of chat answers that are good",
    facts=_facts,
)
