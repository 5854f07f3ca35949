"""`millgate demo overload`: 2.7 times what an engine can do, by users whose programs give up and try again.

The same arrivals and sizes three times: on the engine alone, behind the gate, and behind HAProxy where that is
installed. The gate gets the usual flags (`--upstream --max-inflight --ttft-slo`) and knows
neither the engine's speed nor how long answers will be; HAProxy gets the same cap and a queue with a time limit.
Beside them stands what could have been done with this very load: the schedule that serves in order of arrival and
wastes nothing, and the one that knows every size beforehand (`sim.bounds`).
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import expm1
from typing import Any, NamedTuple

from millgate.demos.bounds import within
from millgate.demos.connection import Endpoint, GateAddress
from millgate.demos.crowd import Story, UserManners, Wish, open_loop
from millgate.demos.haproxy import find_haproxy
from millgate.demos.mix import Encoder, Mix, poisson_wishes
from millgate.demos.scores import (
    AMPLIFICATION_MEANS,
    GOOD_MEANS,
    SCALE_MEANS,
    TTFT_MEANS,
    Score,
    is_good,
    score,
    share,
)
from millgate.demos.sdk_users import SdkUser
from millgate.demos.showing import Show, counted, percent, seconds, table_of
from millgate.demos.stage import (
    MOST_TIME_SCALE,
    DemoStage,
    EngineSetup,
    RunningGate,
    RunningPeer,
    StagedEngine,
    perform,
    tokens_per_event,
)
from millgate.engine.profile import EngineProfile, find_profile
from millgate.sim.bounds.bound import Bounds, bound
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.jobs import Job
from millgate.sim.laws import lognormal
from millgate.sim.traces.synthetic import Lengths

SEQUENCES = 16
TTFT_SLO_S = 5.0
PATIENCE_S = 10.0
RETRIES = 3
RUN_S = 60.0
"""For so long requests arrive: twelve times what one may wait, so that the empty start weighs little."""
HAPROXY_QUEUE_S = 4.0
"""Most of what is good, with room left for reading the prompt. With all of it, 5 s, the last to leave HAProxy's queue
is late by just that reading, and it serves half as many users well."""
EXACT = "exact"
PEERS = ("haproxy", "none")
Start = Callable[[StagedEngine], StagedEngine | RunningGate | RunningPeer]
"""Puts something before an engine, or nothing, and returns where users ask."""
LEAST_MAX_TOKENS, MOST_MAX_TOKENS = 16, 1_000_000
# The longest a user waits between two tries, and as long again for the answer.
_GRACE_S = 60.0
_WASTED_MEANS = "prompt and output tokens computed for anything but a good answer, of all that were computed"


@dataclass(frozen=True, slots=True)
class OverloadOptions:
    """What `demo overload` may be told; times are engine seconds, real time is those over `time_scale`.

    `max_tokens` is what every request sends: `exact`, the true length of its answer, or one number for all.
    `load` is a multiple of the requests per second that full batches attain (`sim.bounds.work`).
    """

    max_tokens: str = EXACT
    load: float = 2.7
    profile: str = "llama3-70b_h100_tp4"
    time_scale: float = 2.0
    seed: int = 1
    peer: str = "haproxy"
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot run, naming the option."""
        within("load", self.load, 0.05, 10.0)
        within("time_scale", self.time_scale, 0.1, MOST_TIME_SCALE)
        find_profile(self.profile)
        if self.peer not in PEERS:
            raise ValueError(f"peer: must be {' or '.join(PEERS)}, got {self.peer!r}")
        if self.max_tokens != EXACT:
            if not self.max_tokens.isdecimal():
                raise ValueError(f"max_tokens: must be {EXACT} or a number, got {self.max_tokens!r}")
            within("max_tokens", int(self.max_tokens), LEAST_MAX_TOKENS, MOST_MAX_TOKENS)


class OverloadRun(NamedTuple):
    """One row of the result: what stood before the engine, and what came of it.

    `wasted_share` is of all tokens that the engine computed, those that no good answer was made of.
    """

    door: str
    score: Score
    wasted_share: float


class OverloadOutcome(NamedTuple):
    """All rows, and what could have been done with this very load."""

    capacity_per_s: float
    bounds: Bounds
    runs: dict[str, OverloadRun]

    def good_share(self, door: str) -> float | None:
        """Return the share of users that were served well behind this door, None where it was not there."""
        run = self.runs.get(door)
        return None if run is None else run.score.good_share

    def ratios(self) -> dict[str, float | None]:
        """Return the gate's good users over those of everything that it is compared with; None where undefined."""
        gate = self.good_share("gate")
        others = {
            "first_come_optimum": self.bounds.first_come,
            "clairvoyant": self.bounds.clairvoyant,
            "upper_bound": self.bounds.upper,
            "no_gate": self.good_share("no_gate"),
            "haproxy": self.good_share("haproxy"),
        }
        return {
            f"gate_to_{name}": gate / other if gate is not None and other else None
            for name, other in others.items()
        }


def run(options: OverloadOptions) -> int:
    """Run the demo and print its table; 0 when it ran, 1 when a process failed, 130 after Ctrl-C."""
    show = Show(as_json=options.json)

    def play(stage: DemoStage) -> None:
        _show_result(show, options, Overload(options, stage, show).play())

    return perform(show, play)


class Overload:
    """The experiment: every door on fresh processes, with the same users."""

    def __init__(self, options: OverloadOptions, stage: DemoStage, show: Show) -> None:
        self._options = options
        self._stage = stage
        self._show = show
        self._engine = EngineSetup(options.profile, options.time_scale, max_num_seqs=SEQUENCES)
        self._capacity_per_s = attainable_per_s(batch_of(options.profile), Mix())
        self._wishes = wishes_of(options)
        self._encode = body_writer(options.max_tokens, tokens_per_event(self._engine))

    def play(self) -> OverloadOutcome:
        """Run every door in turn and return what came of it."""
        doors: dict[str, Start] = {"no_gate": self._no_gate, "gate": self._gate}
        if self._options.peer == "haproxy":
            if (program := find_haproxy()) is None:
                self._show.note("haproxy is not installed: that row is left out")
            else:
                doors["haproxy"] = partial(self._haproxy, program)
        runs = {name: self._run(name, start) for name, start in doors.items()}
        return OverloadOutcome(self._capacity_per_s, bounds_of(self._wishes, self._options.profile), runs)

    def _no_gate(self, engine: StagedEngine) -> StagedEngine:
        return engine

    def _gate(self, engine: StagedEngine) -> RunningGate:
        return self._stage.start_plain_gate(engine, SEQUENCES, TTFT_SLO_S / self._options.time_scale)

    def _haproxy(self, program: str, engine: StagedEngine) -> RunningPeer:
        return self._stage.start_haproxy(
            program, engine, SEQUENCES, HAPROXY_QUEUE_S / self._options.time_scale
        )

    def _run(self, name: str, start: Start) -> OverloadRun:
        scale = self._options.time_scale
        engine = self._stage.start_engine(self._engine)
        door = start(engine)
        stories = asyncio.run(self._crowd(name, door.address))
        counts = engine.counts()
        if door is not engine:
            self._stage.stop(door)
        self._stage.stop(engine)
        result = score(stories, counts, slo_s=TTFT_SLO_S, window_s=RUN_S, time_scale=scale)
        computed = counts.generated_tokens + counts.prefilled_tokens
        return OverloadRun(name, result, wasted_share(stories, computed, TTFT_SLO_S / scale))

    async def _crowd(self, name: str, address: GateAddress) -> list[Story]:
        scale = self._options.time_scale
        manners = UserManners(PATIENCE_S / scale, refreshes=RETRIES, returns=RETRIES)
        make_user = partial(SdkUser, dice=random.Random(self._options.seed), time_scale=scale)
        with self._show.progress(name.replace("_", " "), len(self._wishes)) as advance:
            return await open_loop(
                Endpoint(address),
                [wish._replace(at_s=wish.at_s / scale) for wish in self._wishes],
                manners,
                self._encode,
                on_story=lambda _: advance(),
                grace_s=(PATIENCE_S * (RETRIES + 1) + _GRACE_S) / scale,
                make_user=make_user,
            )


def attainable_per_s(profile: EngineProfile, mix: Mix) -> float:
    """Return the requests of this mix per engine second that full batches attain (`sim.bounds.work`).

    The mix's bounds cut less than a thousandth of its tokens off and are left out.
    """
    # A log-normal law of spread sigma has the squared coefficient of variation exp(sigma^2) - 1.
    cv2 = expm1(mix.spread**2)
    lengths = Lengths(lognormal(mix.mean_prompt_tokens, cv2), lognormal(mix.mean_output_tokens, cv2))
    return capacity_per_s(profile, lengths, profile.max_num_seqs)


def wishes_of(options: OverloadOptions) -> list[Wish]:
    """Return the arrivals and true sizes of this load, in engine seconds; the same for every door and `max_tokens`."""
    rate_per_s = options.load * attainable_per_s(batch_of(options.profile), Mix())
    return list(poisson_wishes(Mix(), rate_per_s=rate_per_s, duration_s=RUN_S, seed=options.seed))


def bounds_of(wishes: list[Wish], profile: str) -> Bounds:
    """Return what could have been good at most and at least of these very wishes, on an engine of this profile."""
    jobs = [Job(wish.at_s, wish.prompt_tokens, wish.output_tokens) for wish in wishes]
    return bound(jobs, batch_of(profile), 1, TTFT_SLO_S)


def body_writer(max_tokens: str, tokens_per_event: int) -> Callable[[int, Wish], bytes]:
    """Return what writes request bodies with the true length of each answer, or one number, as their `max_tokens`."""
    if max_tokens != EXACT:
        return Encoder(tokens_per_event=tokens_per_event, max_tokens=int(max_tokens))

    def write(number: int, wish: Wish) -> bytes:
        encode = Encoder(tokens_per_event=tokens_per_event, max_tokens=wish.output_tokens)
        return encode(number, wish)

    return write


def wasted_share(stories: list[Story], computed_tokens: int, slo_s: float) -> float:
    """Return the share of what the engine computed that is in no good answer; `slo_s` is real seconds."""
    of_use = sum(story.prompt_tokens + story.output_tokens for story in stories if is_good(story, slo_s))
    return max(0.0, 1.0 - share(of_use, computed_tokens)) if computed_tokens else 0.0


def batch_of(profile: str) -> EngineProfile:
    """Return the engine of this profile as the demo runs it, unscaled: with `SEQUENCES` in a batch."""
    return replace(find_profile(profile), max_num_seqs=SEQUENCES)


def _show_result(show: Show, options: OverloadOptions, outcome: OverloadOutcome) -> None:
    table = table_of(
        f"Overload: {options.profile}, {SEQUENCES} sequences, {options.load:g}x capacity for {RUN_S:g} s, "
        f"max_tokens {options.max_tokens}, seed {options.seed}, time scale {options.time_scale:g}",
        ("", "good", "of the optimum", "wasted", "attempts", "TTFT p50", "TTFT p99", "refusals"),
        [*_limits(outcome.bounds), *(_row(outcome, run) for run in outcome.runs.values())],
    )
    show.result(table, _record(options, outcome), _notes(outcome))


def _limits(bounds: Bounds) -> list[tuple[str, ...]]:
    shares = {
        "optimum in order of arrival": bounds.first_come,
        "clairvoyant, all sizes known": bounds.clairvoyant,
    }
    empty = ("-",) * 5
    return [
        (name, percent(good), f"{share(good, bounds.first_come):.2f}x", *empty)
        for name, good in shares.items()
    ]


def _row(outcome: OverloadOutcome, run: OverloadRun) -> tuple[str, ...]:
    result = run.score
    return (
        run.door.replace("_", " "),
        percent(result.good_share),
        f"{share(result.good_share, outcome.bounds.first_come):.2f}x",
        percent(run.wasted_share),
        f"{result.retry_amplification:.2f}",
        seconds(result.ttft_p50_s),
        seconds(result.ttft_p99_s),
        counted(result.yields),
    )


def _notes(outcome: OverloadOutcome) -> tuple[str, ...]:
    return (
        f"1x = {outcome.capacity_per_s:.2f} requests/s, what full batches attain by the engine's step times.",
        f"These very requests ask for {outcome.bounds.load:.2f}x.",
        f"good: {GOOD_MEANS.format(slo_s=TTFT_SLO_S)}. wasted: {_WASTED_MEANS}.",
        f"attempts: {AMPLIFICATION_MEANS}. TTFT: {TTFT_MEANS}.",
        f"Users give each attempt {PATIENCE_S:g} s for its first token and try {RETRIES} times more.",
        "Hints and x-should-retry are obeyed as the SDKs do.",
        SCALE_MEANS,
    )


def _record(options: OverloadOptions, outcome: OverloadOutcome) -> dict[str, Any]:
    return {
        "demo": "overload",
        "options": asdict(options),
        "capacity_per_s": round(outcome.capacity_per_s, 4),
        "bounds": {name: round(value, 6) for name, value in outcome.bounds.as_dict().items()},
        "runs": {
            name: {**run.score.rounded(), "wasted_share": round(run.wasted_share, 6)}
            for name, run in outcome.runs.items()
        },
        "ratios": {
            name: None if value is None else round(value, 4) for name, value in outcome.ratios().items()
        },
    }
