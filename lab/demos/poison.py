"""`python -m lab demo poison`: queue backlog poisoning, with and without the gate.

Users with patience refresh when nothing comes, and the engine goes on working for those that have left. Without a
gate the engine's unbounded queue soon holds nothing but the dead: every request times out and everything is wasted.
"""

import asyncio
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from lab.demos.closed_loop import (
    LEAST_MEASURED_ANSWERS,
    LEAST_WARM_ANSWERS,
    batched_answer_s,
    closed_loop,
    closed_wishes,
)
from lab.demos.gates import GateSetup, start_gate
from lab.demos.patient_users import PatientUser, UserManners
from lab.demos.words import PREFILL_MEANS, WASTED_MEANS, manners_mean
from millgate.demos.connection import Endpoint
from millgate.demos.processes import ChildError
from millgate.demos.scores import (
    AMPLIFICATION_MEANS,
    GOOD_MEANS,
    SCALE_MEANS,
    TTFT_MEANS,
    Score,
    score,
)
from millgate.demos.showing import Advance, Show, counted, percent, seconds, table_of
from millgate.demos.stage import (
    MOST_TIME_SCALE,
    DemoStage,
    EngineSetup,
    perform,
    tokens_per_event,
    within,
)
from millgate.demos.users import Encoder, Mix, Story, open_loop, poisson_wishes
from millgate.engine.profile import find_profile

MOST_RETURNS = 8
"""How often a user obeys a hint; patience ends it long before."""
WARMUP_PATIENCES, CAPACITY_PATIENCES = 1, 8
"""The closed loop: one patience time to fill the batch, eight to count some 600 answers, 3 % standard error; a shorter
run is measured as shortly, and a patience below an answer's time for some answers' time."""


@dataclass(frozen=True, slots=True)
class PoisonOptions:
    """What `lab demo poison` may be told; times are engine seconds, real time is those over `time_scale`.

    `loads` are multiples of the measured capacity; `run_patiences` is how many patience times users keep arriving;
    `cap` is the engine's batch and the gate's limit.
    """

    loads: tuple[float, ...] = (0.8, 1.25, 2.0)
    patience_s: float = 15.0
    refreshes: int = 3
    run_patiences: float = 20.0
    cap: int = 16
    profile: str = "llama3-70b_h100_tp4"
    time_scale: float = 5.0
    seed: int = 1
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot run, naming the option."""
        within("time_scale", self.time_scale, 0.1, MOST_TIME_SCALE)
        find_profile(self.profile)
        within("patience_s", self.patience_s, 0.1, 600.0)
        within("refreshes", self.refreshes, 0, 20)
        within("run_patiences", self.run_patiences, 1.0, 1000.0)
        within("cap", self.cap, 1, 256)
        if not self.loads:
            raise ValueError("loads: name at least one")
        for load in self.loads:
            within("loads", load, 0.05, 10.0)


class PoisonRun(NamedTuple):
    """One row of the result."""

    load: float
    gate: bool
    score: Score


def run(options: PoisonOptions) -> int:
    """Run the demo and print its table; 0 when it ran, 1 when a process failed, 130 after Ctrl-C."""
    show = Show(as_json=options.json)

    def play(stage: DemoStage) -> None:
        _show_result(show, options, *Poison(options, stage, show).play())

    return perform(show, play)


class Poison:
    """The experiment: capacity first, then each load without and with the gate, each on fresh processes."""

    def __init__(self, options: PoisonOptions, stage: DemoStage, show: Show) -> None:
        self._options = options
        self._stage = stage
        self._show = show
        self._mix = Mix()
        self._engine = EngineSetup(
            options.profile, options.time_scale, max_num_seqs=options.cap, ignore_hangups=True
        )
        self._encode = Encoder(
            tokens_per_event=tokens_per_event(self._engine), max_tokens=self._mix.most_output_tokens
        )

    def play(self) -> tuple[float, list[PoisonRun]]:
        """Return the capacity in requests per engine second, and one run per load without and with the gate."""
        capacity_per_s = self._capacity()
        self._show.note(f"capacity at {self._options.cap} streams: {capacity_per_s:.2f} requests/s")
        runs = [
            self._run(load, load * capacity_per_s, gate=gate)
            for load in self._options.loads
            for gate in (False, True)
        ]
        return capacity_per_s, runs

    def _capacity(self) -> float:
        options = self._options
        patience_s, mix = options.patience_s / options.time_scale, self._mix
        answer_s = batched_answer_s(self._engine, mix.mean_prompt_tokens, mix.mean_output_tokens)
        measured_s = min(CAPACITY_PATIENCES, options.run_patiences) * patience_s
        engine = self._stage.start_engine(self._engine)
        with self._show.progress("capacity, closed loop", None) as advance:
            per_real_s = asyncio.run(
                closed_loop(
                    Endpoint(engine.address),
                    closed_wishes(self._mix, options.seed),
                    self._encode,
                    users=options.cap,
                    warmup_s=max(WARMUP_PATIENCES * patience_s, LEAST_WARM_ANSWERS * answer_s),
                    measured_s=max(measured_s, LEAST_MEASURED_ANSWERS * answer_s),
                    on_story=lambda _: advance(),
                )
            )
        self._stage.stop(engine)
        return per_real_s / options.time_scale

    def _run(self, load: float, rate_per_s: float, *, gate: bool) -> PoisonRun:
        options = self._options
        window_s = options.run_patiences * options.patience_s
        engine = self._stage.start_engine(self._engine)
        setup = GateSetup(options.patience_s / options.time_scale, deadline_from="first_attempt")
        door = start_gate(self._stage, engine, self._engine, setup) if gate else engine
        what = f"{load:g}x {'with' if gate else 'without'} the gate"
        with self._show.progress(what, round(rate_per_s * window_s)) as advance:
            stories = asyncio.run(self._crowd(Endpoint(door.address), rate_per_s, window_s, advance))
        result = score(
            stories,
            engine.counts(),
            slo_s=options.patience_s,
            window_s=window_s,
            time_scale=options.time_scale,
        )
        if gate:
            self._stage.stop(door)
        self._stage.stop(engine)
        return PoisonRun(load, gate, result)

    async def _crowd(
        self, endpoint: Endpoint, rate_per_s: float, window_s: float, advance: Advance
    ) -> list[Story]:
        options = self._options
        wishes = list(
            poisson_wishes(
                self._mix,
                rate_per_s=rate_per_s * options.time_scale,
                duration_s=window_s / options.time_scale,
                seed=options.seed,
            )
        )
        if not wishes:
            raise ChildError(
                f"no user comes within {window_s:g} s at {rate_per_s:.2g} a second: more --run-patiences, or --load"
            )
        patience_s = options.patience_s / options.time_scale
        manners = UserManners(patience_s, refreshes=options.refreshes, returns=MOST_RETURNS)
        return await open_loop(
            wishes,
            self._encode,
            lambda body: PatientUser(endpoint, manners).live(body),
            on_story=lambda _: advance(),
            grace_s=grace_s(options, self._engine, self._mix),
        )


def grace_s(options: PoisonOptions, engine: EngineSetup, mix: Mix) -> float:
    """Return how long the last users may take, in real seconds: all looks at the screen, and the longest answer or twice the patience."""
    patience_s = options.patience_s / options.time_scale
    longest_s = batched_answer_s(engine, mix.most_prompt_tokens, mix.most_output_tokens)
    return patience_s * (options.refreshes + 1) + max(2.0 * patience_s, longest_s)


def _show_result(show: Show, options: PoisonOptions, capacity_per_s: float, runs: list[PoisonRun]) -> None:
    table = table_of(
        f"Poison: {options.profile}, {options.cap} streams, hang-ups ignored, patience {options.patience_s:g} s, "
        f"{options.run_patiences:g} patience times, time scale {options.time_scale:g}",
        (
            "load",
            "gate",
            "good",
            "wasted tokens",
            "wasted prefill",
            "attempts",
            "TTFT p50",
            "TTFT p99",
            "peak inflight",
            "yields",
        ),
        (_row(run) for run in runs),
    )
    show.result(table, _record(options, capacity_per_s, runs), _notes(options, capacity_per_s))


def _row(run: PoisonRun) -> tuple[str, ...]:
    result = run.score
    return (
        f"{run.load:g}x",
        "yes" if run.gate else "no",
        percent(result.good_share),
        percent(result.wasted_token_share),
        percent(result.wasted_prefill_share),
        f"{result.retry_amplification:.2f}",
        seconds(result.ttft_p50_s),
        seconds(result.ttft_p99_s),
        str(result.peak_inflight),
        counted(result.yields),
    )


def _notes(options: PoisonOptions, capacity_per_s: float) -> tuple[str, ...]:
    return (
        f"1x = {capacity_per_s:.2f} requests/s: the same mix, {options.cap} users in a closed loop on the engine alone.",
        f"good: {GOOD_MEANS.format(slo_s=options.patience_s)}.",
        f"wasted tokens: {WASTED_MEANS}. wasted prefill: {PREFILL_MEANS}.",
        f"attempts: {AMPLIFICATION_MEANS}. TTFT: {TTFT_MEANS}.",
        manners_mean(options.patience_s, options.refreshes),
        SCALE_MEANS,
    )


def _record(options: PoisonOptions, capacity_per_s: float, runs: list[PoisonRun]) -> dict[str, Any]:
    return {
        "demo": "poison",
        "options": asdict(options),
        "capacity_per_s": round(capacity_per_s, 4),
        "runs": [{"load": run.load, "gate": run.gate, **run.score.rounded()} for run in runs],
    }
