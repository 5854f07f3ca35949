"""`python -m lab demo replay`: an hour of production arrivals, or a slice of it, before an engine with and without the gate.

Arrivals and true sizes come from an Azure LLM inference trace. `rate_scale` 2 sends them twice as fast, which is
how a trace that fits an engine becomes one that does not; `time_scale` speeds everything up, engine included.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lab.demos.closed_loop import LEAST_MEASURED_ANSWERS, LEAST_WARM_ANSWERS, batched_answer_s, closed_loop
from lab.demos.gates import GateSetup, start_gate
from lab.demos.patient_users import PatientUser, UserManners
from lab.demos.trace import ReplayTraceError, TraceRow, read_trace
from lab.demos.words import PREFILL_MEANS, WASTED_MEANS, manners_mean
from millgate.demos.connection import Endpoint
from millgate.demos.scores import (
    AMPLIFICATION_MEANS,
    GOOD_MEANS,
    SCALE_MEANS,
    TTFT_MEANS,
    Score,
    score,
    share,
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
from millgate.demos.users import NUMBER_TOKENS, Encoder, Story, Wish, open_loop
from millgate.engine.profile import find_profile

RETRIES = 2
"""Of timeouts as of refusals: what the OpenAI and Anthropic SDKs do unless told otherwise."""
WARMUP_SLOS, CAPACITY_SLOS = 2, 8
"""The closed loop, in TTFT SLOs: to fill the batch, and to count some 600 answers on an hour's mean rate; for some answers' time at least."""
LONGEST_ANSWER_S = 120.0
"""How long the last answers may take after every user's patience is over; the traces' longest have 1,899 tokens."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What `lab demo replay` may be told; times are engine seconds, real time is those over `time_scale`.

    `start_s` and `duration_s` (None: to its end) name the slice in the trace's own time; `ttft_slo_s` is also the
    users' patience; `cap` is the engine's batch and the gate's limit; `without_gate` False runs the gate alone.
    """

    trace: Path
    rate_scale: float = 1.0
    start_s: float = 0.0
    duration_s: float | None = 300.0
    ttft_slo_s: float = 10.0
    cap: int = 64
    profile: str = "llama3-70b_h100_tp4"
    ignore_hangups: bool = False
    without_gate: bool = True
    time_scale: float = 5.0
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot run, naming the option."""
        within("rate_scale", self.rate_scale, 0.01, 100.0)
        within("start_s", self.start_s, 0.0, 1e9)
        if self.duration_s is not None:
            within("duration_s", self.duration_s, 1.0, 1e9)
        within("ttft_slo_s", self.ttft_slo_s, 0.1, 600.0)
        within("cap", self.cap, 1, 2048)
        within("time_scale", self.time_scale, 0.1, MOST_TIME_SCALE)
        find_profile(self.profile)


class Slice(NamedTuple):
    """What a slice of a trace holds: how many requests, over how many trace seconds, of how many tokens."""

    requests: int
    lasts_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def rate_per_s(self) -> float:
        """Requests a trace second."""
        return self.requests / self.lasts_s


class ReplayRun(NamedTuple):
    """One row of the result."""

    gate: bool
    score: Score


def run(options: ReplayOptions) -> int:
    """Run the demo and print its table; 0 when it ran, 1 when a process failed, 2 for a bad trace, 130 after Ctrl-C."""
    show = Show(as_json=options.json)
    try:
        part = measure(options)
    except ReplayTraceError as error:
        show.note(str(error))
        return 2

    def play(stage: DemoStage) -> None:
        _show_result(show, options, part, *Replay(options, part, stage, show).play())

    return perform(show, play)


def measure(options: ReplayOptions) -> Slice:
    """Read the slice once, so that a bad row is found before anything is started."""
    requests = prompt_tokens = output_tokens = 0
    last_s, duration_s = 0.0, options.duration_s
    for row in _rows(options):
        requests += 1
        prompt_tokens += row.prompt_tokens
        output_tokens += row.output_tokens
        last_s = row.at_s
    if duration_s is None or not _goes_on(options, duration_s):
        # A trace that ends before its slice does comes at the rate of what there is.
        return Slice(requests, max(1.0, last_s), prompt_tokens, output_tokens)
    return Slice(requests, duration_s, prompt_tokens, output_tokens)


def _goes_on(options: ReplayOptions, duration_s: float) -> bool:
    """Return whether the trace has a row after the slice."""
    return any(row.at_s >= duration_s for row in read_trace(options.trace, start_s=options.start_s))


def _rows(options: ReplayOptions) -> Iterator[TraceRow]:
    return read_trace(options.trace, start_s=options.start_s, duration_s=options.duration_s)


def replayed(options: ReplayOptions) -> Iterator[Wish]:
    """Turn the slice into wishes in real time; a prompt carries at least its own number."""
    faster = options.rate_scale * options.time_scale
    for row in _rows(options):
        yield Wish(row.at_s / faster, max(NUMBER_TOKENS, row.prompt_tokens), row.output_tokens)


def again_and_again(options: ReplayOptions) -> Iterator[Wish]:
    """Repeat the slice's wishes for ever, for users that ask one after the other."""
    while True:
        yield from replayed(options)


class Replay:
    """The experiment: capacity first, then the slice without and with the gate, each on fresh processes."""

    def __init__(self, options: ReplayOptions, part: Slice, stage: DemoStage, show: Show) -> None:
        self._options = options
        self._part = part
        self._stage = stage
        self._show = show
        self._engine = EngineSetup(
            options.profile,
            options.time_scale,
            max_num_seqs=options.cap,
            ignore_hangups=options.ignore_hangups,
        )
        # No max_tokens: the trace does not know it, and an honest bound is not the true length.
        self._encode = Encoder(tokens_per_event=tokens_per_event(self._engine), max_tokens=None)

    def play(self) -> tuple[float, list[ReplayRun]]:
        """Return the capacity in requests per engine second, one run without the gate if asked for, one with it."""
        gates = (False, True) if self._options.without_gate else (True,)
        return self._capacity(), [self._run(gate=gate) for gate in gates]

    def _capacity(self) -> float:
        options = self._options
        slo_s, part = options.ttft_slo_s / options.time_scale, self._part
        answer_s = batched_answer_s(
            self._engine, part.prompt_tokens / part.requests, part.output_tokens / part.requests
        )
        engine = self._stage.start_engine(self._engine)
        with self._show.progress("capacity, closed loop", None) as advance:
            per_real_s = asyncio.run(
                closed_loop(
                    Endpoint(engine.address),
                    again_and_again(options),
                    self._encode,
                    users=options.cap,
                    warmup_s=max(WARMUP_SLOS * slo_s, LEAST_WARM_ANSWERS * answer_s),
                    measured_s=max(CAPACITY_SLOS * slo_s, LEAST_MEASURED_ANSWERS * answer_s),
                    on_story=lambda _: advance(),
                )
            )
        self._stage.stop(engine)
        return per_real_s / options.time_scale

    def _run(self, *, gate: bool) -> ReplayRun:
        options = self._options
        engine = self._stage.start_engine(self._engine)
        setup = GateSetup(options.ttft_slo_s / options.time_scale, deadline_from="first_attempt")
        door = start_gate(self._stage, engine, self._engine, setup) if gate else engine
        with self._show.progress(f"{'with' if gate else 'without'} the gate", self._part.requests) as advance:
            stories = asyncio.run(self._crowd(Endpoint(door.address), advance))
        result = score(
            stories,
            engine.counts(),
            slo_s=options.ttft_slo_s,
            window_s=self._part.lasts_s / options.rate_scale,
            time_scale=options.time_scale,
        )
        if gate:
            self._stage.stop(door)
        self._stage.stop(engine)
        return ReplayRun(gate, result)

    async def _crowd(self, endpoint: Endpoint, advance: Advance) -> list[Story]:
        options = self._options
        patience_s = options.ttft_slo_s / options.time_scale
        grace_s = patience_s * (RETRIES + 1) + LONGEST_ANSWER_S / options.time_scale
        manners = UserManners(patience_s, refreshes=RETRIES, returns=RETRIES)
        return await open_loop(
            replayed(options),
            self._encode,
            lambda body: PatientUser(endpoint, manners).live(body),
            on_story=lambda _: advance(),
            grace_s=grace_s,
        )


def _show_result(
    show: Show, options: ReplayOptions, part: Slice, capacity_per_s: float, runs: list[ReplayRun]
) -> None:
    table = table_of(
        _title(options, part),
        (
            "gate",
            "good",
            "goodput",
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
    show.result(table, _record(options, part, capacity_per_s, runs), _notes(options, part, capacity_per_s))


def _title(options: ReplayOptions, part: Slice) -> str:
    hangups = "ignored" if options.ignore_hangups else "honoured"
    return (
        f"Replay: {options.trace.name}, {options.start_s:g}-{options.start_s + part.lasts_s:g} s, "
        f"rate scale {options.rate_scale:g}, time scale {options.time_scale:g}; "
        f"{options.profile}, {options.cap} streams, hang-ups {hangups}"
    )


def _row(run: ReplayRun) -> tuple[str, ...]:
    result = run.score
    return (
        "yes" if run.gate else "no",
        percent(result.good_share),
        f"{result.goodput_per_s:.2f}/s",
        percent(result.wasted_token_share),
        percent(result.wasted_prefill_share),
        f"{result.retry_amplification:.2f}",
        seconds(result.ttft_p50_s),
        seconds(result.ttft_p99_s),
        str(result.peak_inflight),
        counted(result.yields),
    )


def _notes(options: ReplayOptions, part: Slice, capacity_per_s: float) -> tuple[str, ...]:
    rate_per_s = part.rate_per_s * options.rate_scale
    return (
        (
            f"{part.requests:,} requests, {rate_per_s:.2f} a second, on average {part.prompt_tokens / part.requests:,.0f} "
            f"prompt and {part.output_tokens / part.requests:,.0f} output tokens."
        ),
        (
            f"Load {share(rate_per_s, capacity_per_s):.2f}x: {options.cap} users in a closed loop on the engine alone "
            f"get {capacity_per_s:.2f} requests of this slice a second."
        ),
        f"good: {GOOD_MEANS.format(slo_s=options.ttft_slo_s)}. goodput: good requests a second.",
        f"wasted tokens: {WASTED_MEANS}. wasted prefill: {PREFILL_MEANS}.",
        f"attempts: {AMPLIFICATION_MEANS}. TTFT: {TTFT_MEANS}.",
        manners_mean(options.ttft_slo_s, RETRIES),
        SCALE_MEANS,
    )


def _record(
    options: ReplayOptions, part: Slice, capacity_per_s: float, runs: list[ReplayRun]
) -> dict[str, Any]:
    return {
        "demo": "replay",
        "options": {**asdict(options), "trace": str(options.trace)},
        "slice": part._asdict(),
        "capacity_per_s": round(capacity_per_s, 4),
        "load": round(share(part.rate_per_s * options.rate_scale, capacity_per_s), 4),
        "runs": [{"gate": run.gate, **run.score.rounded()} for run in runs],
    }
