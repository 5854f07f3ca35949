"""`millgate demo`: more than an engine can do, by users whose programs give up and try again.

The same arrivals and sizes three times: on the engine alone, behind the gate, and behind HAProxy where that is
installed. The gate gets the usual flags (`--upstream --max-inflight --ttft-slo`) and knows
neither the engine's speed nor how long answers will be. HAProxy gets the same cap and a queue with a time limit.
Beside them stands what could have been done with this very load. That is the schedule that serves in order of arrival and
wastes nothing, and the one that knows every size beforehand (`sim.bounds`). By default 2.7 times what the engine can do comes
for a minute; `at_once` is a burst instead, and `ignore_hangups` an engine that works on for users who left.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from math import expm1
from typing import Any, NamedTuple

from millgate.demos.connection import Endpoint, GateAddress
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
from millgate.demos.showing import Show, counted, percent, seconds, table_of
from millgate.demos.stage import (
    MOST_TIME_SCALE,
    DemoStage,
    EngineSetup,
    RunningGate,
    RunningPeer,
    StagedEngine,
    find_haproxy,
    perform,
    tokens_per_event,
    within,
)
from millgate.demos.users import Encoder, Mix, SdkUser, Story, Wish, open_loop, poisson_wishes, sizes
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
"""For so long requests arrive: twelve times what a user may wait, so that the empty start weighs little."""
HAPROXY_QUEUE_SHARE = 0.8
"""Of the time that is good, with room left for reading the prompt. With all of it the last to leave HAProxy's queue
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
    """What `millgate demo` may be told; times are engine seconds, real time is those over `time_scale`.

    `load` is a multiple of the requests per second that full batches attain (`sim.bounds.work`), for `run_s`; `at_once`
    above 0 is so many requests at the same moment instead. `cap` is the engine's batch and the limit of what stands
    before it; `max_queue` None lets the gate queue what it can serve in time. `max_tokens` is what every request sends:
    `exact`, the true length of its answer, or one number for all.
    """

    max_tokens: str = EXACT
    load: float = 2.7
    at_once: int = 0
    cap: int = SEQUENCES
    max_queue: int | None = None
    ttft_slo_s: float = TTFT_SLO_S
    patience_s: float = PATIENCE_S
    retries: int = RETRIES
    run_s: float = RUN_S
    ignore_hangups: bool = False
    profile: str = "llama3-70b_h100_tp4"
    time_scale: float = 2.0
    seed: int = 1
    peer: str = "haproxy"
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot run, naming the option."""
        within("load", self.load, 0.05, 10.0)
        within("at_once", self.at_once, 0, 1000)
        within("cap", self.cap, 1, 256)
        within("max_queue", self.max_queue or 0, 0, 100_000)
        within("ttft_slo_s", self.ttft_slo_s, 0.1, 600.0)
        within("patience_s", self.patience_s, 0.1, 600.0)
        within("retries", self.retries, 0, 20)
        within("run_s", self.run_s, 5.0, 3600.0)
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
        self._engine = EngineSetup(
            options.profile,
            options.time_scale,
            max_num_seqs=options.cap,
            ignore_hangups=options.ignore_hangups,
        )
        self._capacity_per_s = attainable_per_s(batch_of(options.profile, options.cap), Mix())
        self._wishes = wishes_of(options)
        self._encode = body_writer(options.max_tokens, tokens_per_event(self._engine))

    def play(self) -> OverloadOutcome:
        """Run every door in turn and return what came of it."""
        doors: dict[str, Start] = {"no_gate": lambda engine: engine, "gate": self._gate}
        if self._options.peer == "haproxy":
            if (program := find_haproxy()) is None:
                self._show.note("haproxy is not installed: its row is left out")
            else:
                doors["haproxy"] = partial(self._haproxy, program)
        runs = {name: self.run_door(name, start) for name, start in doors.items()}
        return OverloadOutcome(self._capacity_per_s, bounds_of(self._wishes, self._options), runs)

    def _gate(self, engine: StagedEngine) -> RunningGate:
        options = self._options
        slo_s = options.ttft_slo_s / options.time_scale
        queue = () if options.max_queue is None else ("--max-queue", str(options.max_queue))
        return self._stage.start_plain_gate(engine, options.cap, slo_s, *queue)

    def _haproxy(self, program: str, engine: StagedEngine) -> RunningPeer:
        options = self._options
        queue_s = HAPROXY_QUEUE_SHARE * options.ttft_slo_s / options.time_scale
        return self._stage.start_haproxy(program, engine, options.cap, queue_s)

    def gate(self) -> OverloadRun:
        """Run the gate alone."""
        return self.run_door("gate", self._gate)

    def run_door(
        self,
        name: str,
        start: Start,
        stop: Callable[[StagedEngine | RunningGate | RunningPeer], None] | None = None,
    ) -> OverloadRun:
        """Run one door on a fresh engine; `stop` ends what `start` has started, where the stage does not know it."""
        scale, slo_s = self._options.time_scale, self._options.ttft_slo_s
        engine = self._stage.start_engine(self._engine)
        door = start(engine)
        stories = asyncio.run(self._crowd(name, door.address))
        counts = engine.counts()
        if door is not engine:
            (stop or self._stage.stop)(door)
        self._stage.stop(engine)
        result = score(stories, counts, slo_s=slo_s, window_s=self._options.run_s, time_scale=scale)
        computed = counts.generated_tokens + counts.prefilled_tokens
        return OverloadRun(name, result, wasted_share(stories, computed, slo_s / scale))

    async def _crowd(self, name: str, address: GateAddress) -> list[Story]:
        options = self._options
        scale, tries = options.time_scale, options.retries + 1
        endpoint, dice = Endpoint(address), random.Random(options.seed)

        def live(body: bytes) -> Awaitable[Story]:
            patience_s = options.patience_s / scale
            return SdkUser(endpoint, patience_s, tries, dice=dice, time_scale=scale).live(body)

        with self._show.progress(name.replace("_", " "), len(self._wishes)) as advance:
            return await open_loop(
                [wish._replace(at_s=wish.at_s / scale) for wish in self._wishes],
                self._encode,
                live,
                on_story=lambda _: advance(),
                grace_s=(options.patience_s * tries + _GRACE_S) / scale,
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
    if options.at_once:
        drawn = islice(sizes(Mix(), random.Random(options.seed)), options.at_once)
        return [Wish(0.0, prompt_tokens, output_tokens) for prompt_tokens, output_tokens in drawn]
    rate_per_s = options.load * attainable_per_s(batch_of(options.profile, options.cap), Mix())
    return list(poisson_wishes(Mix(), rate_per_s=rate_per_s, duration_s=options.run_s, seed=options.seed))


def bounds_of(wishes: list[Wish], options: OverloadOptions) -> Bounds:
    """Return what could have been good at most and at least of these very wishes, on the engine of these options."""
    jobs = [Job(wish.at_s, wish.prompt_tokens, wish.output_tokens) for wish in wishes]
    return bound(jobs, batch_of(options.profile, options.cap), 1, options.ttft_slo_s)


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


def batch_of(profile: str, sequences: int = SEQUENCES) -> EngineProfile:
    """Return the engine of this profile as the demo runs it, unscaled: with so many sequences in a batch."""
    return replace(find_profile(profile), max_num_seqs=sequences)


def _show_result(show: Show, options: OverloadOptions, outcome: OverloadOutcome) -> None:
    table = table_of(
        f"Overload: {options.profile}, {options.cap} sequences, {_load_of(options)}, "
        f"max_tokens {options.max_tokens}, seed {options.seed}, time scale {options.time_scale:g}",
        ("", "good", "of the optimum", "wasted", "attempts", "TTFT p50", "TTFT p99", "refusals"),
        [*_limits(outcome.bounds), *(_row(outcome, run) for run in outcome.runs.values())],
    )
    show.result(table, _record(options, outcome), _notes(options, outcome))


def _load_of(options: OverloadOptions) -> str:
    if options.at_once:
        return f"{options.at_once} requests at once"
    return f"{options.load:g}x capacity for {options.run_s:g} s"


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


def _notes(options: OverloadOptions, outcome: OverloadOutcome) -> tuple[str, ...]:
    return (
        f"1x = {outcome.capacity_per_s:.2f} requests/s, what full batches attain by the engine's step times.",
        *(() if options.at_once else (f"These very requests ask for {outcome.bounds.load:.2f}x.",)),
        f"good: {GOOD_MEANS.format(slo_s=options.ttft_slo_s)}. wasted: {_WASTED_MEANS}.",
        f"attempts: {AMPLIFICATION_MEANS}. TTFT: {TTFT_MEANS}.",
        f"Users give each attempt {options.patience_s:g} s for its first token and try {options.retries} times more.",
        "Hints and x-should-retry are obeyed as the SDKs do.",
        *(("The engine generates on for users who hang up.",) if options.ignore_hangups else ()),
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
