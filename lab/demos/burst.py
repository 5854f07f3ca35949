"""`python -m lab demo burst`: twenty identical requests at once meet a gate that runs one and holds none.

One runs, nineteen are told when to come back. With `retries` they do come back, once each, and all are served
one at a time in the order of their first arrival. That is what "a hint is a promise" means. The users are the
unmodified `openai` SDK.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from lab.demos.gates import GateSetup, start_gate
from millgate.client.answers import REFUSALS, read_hint_s
from millgate.demos.connection import GateAddress
from millgate.demos.showing import Advance, Show, seconds, table_of
from millgate.demos.stage import (
    MOST_TIME_SCALE,
    DemoStage,
    EngineSetup,
    RunningGate,
    StagedEngine,
    perform,
    within,
)
from millgate.engine.profile import find_profile

PROFILE = "demo"
OUTPUT_TOKENS = 256
"""What a gate expects of an answer that it knows nothing about, so that its very first hints can be true."""
LONGEST_LINE_S = 45.0
"""Beyond it hints are no longer places in a line but spread over 45 to 60 s, the most that an SDK waits for."""
CALL_WITHIN_S = 300.0
USER_HEADER = "x-demo-user"
PROMPT = "The same question from everybody."
TTFT_SLO_S = 60.0
"""No deadline of the lane shall speak here: the cap and the empty queue alone."""


@dataclass(frozen=True, slots=True)
class BurstOptions:
    """What `lab demo burst` may be told; `service_s` is engine seconds, real time is that over `time_scale`."""

    users: int = 20
    service_s: float = 10.0
    retries: bool = False
    time_scale: float = 10.0
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot run, naming the option."""
        within("users", self.users, 1, 200)
        within("time_scale", self.time_scale, 0.1, MOST_TIME_SCALE)
        # In real time; the embedded engine cannot make one answer of this length slower or faster.
        within("service_s / time_scale", self.service_s / self.time_scale, 0.4, 20.0)
        line_s = (self.users - 1) * self.service_s / self.time_scale
        if self.retries and line_s > LONGEST_LINE_S:
            raise ValueError(
                f"retries: {self.users} users of {self.service_s:g} s at time scale {self.time_scale:g} make a line of "
                f"{line_s:g} s, must be at most {LONGEST_LINE_S:g} s: fewer users, or a larger time_scale"
            )


@dataclass(slots=True)
class Record:
    """What the users met; users in the order in which it happened to them."""

    attempts: Counter[int] = field(default_factory=Counter)
    served: list[int] = field(default_factory=list)
    hints: list[float] = field(default_factory=list)
    first_hint: dict[int, float] = field(default_factory=dict)

    async def note_request(self, request: httpx2.Request) -> None:
        """Count an attempt of the user that the request names."""
        if USER_HEADER in request.headers:
            self.attempts[int(request.headers[USER_HEADER])] += 1

    async def note_response(self, response: httpx2.Response) -> None:
        """Write down a refusal's hint."""
        if response.status_code in REFUSALS and USER_HEADER in response.request.headers:
            hint = read_hint_s(response.headers) or 0.0
            self.hints.append(hint)
            self.first_hint.setdefault(int(response.request.headers[USER_HEADER]), hint)

    def order_kept(self) -> bool:
        """Tell whether users were served in the order of their first arrival.

        That order is the gate's: the clients let in at once, then the others as they were told to come back. Which
        of twenty equal packets was read first, only the gate can know.
        """
        return self.served == sorted(self.served, key=lambda user: self.first_hint.get(user, 0.0))


def run(options: BurstOptions) -> int:
    """Run the demo and print its table; 0 when it ran, 1 when a process failed, 130 after Ctrl-C."""
    show = Show(as_json=options.json)

    def play(stage: DemoStage) -> None:
        setup = engine_setup(options)
        engine = stage.start_engine(setup)
        gate_setup = GateSetup(TTFT_SLO_S, deadline_from="attempt", max_queue=0)
        gate = start_gate(stage, engine, setup, gate_setup)
        with show.progress("users answered", options.users) as advance:
            record = asyncio.run(_ask_all(options, gate.address, advance))
        _show_result(show, options, record, _result(options, record, engine, gate))

    return perform(show, play)


def engine_setup(options: BurstOptions) -> EngineSetup:
    """Slow the engine down so far that one answer of `OUTPUT_TOKENS` takes `service_s`."""
    prior = find_profile(PROFILE).prior()
    natural_s = prior.ttft_base_s + OUTPUT_TOKENS * (prior.tpot_base_s + prior.tpot_per_stream_s)
    return EngineSetup(PROFILE, options.time_scale * natural_s / options.service_s, max_num_seqs=1)


async def _ask_all(options: BurstOptions, gate: GateAddress, advance: Advance) -> Record:
    record = Record()
    hooks: dict[str, list[Callable[..., Any]]] = {
        "request": [record.note_request],
        "response": [record.note_response],
    }
    async with openai.AsyncOpenAI(
        base_url=f"http://{gate.host}:{gate.port}/v1",
        api_key="demo",
        max_retries=1 if options.retries else 0,
        timeout=CALL_WITHIN_S,
        http_client=openai.DefaultAsyncHttpxClient(event_hooks=hooks),
    ) as client:
        # A connection for each, made before: the burst is requests, not handshakes.
        await asyncio.gather(*(client.models.list() for _ in range(options.users)), return_exceptions=True)
        await asyncio.gather(*(_ask(client, user, record, advance) for user in range(options.users)))
    return record


async def _ask(client: openai.AsyncOpenAI, user: int, record: Record, advance: Advance) -> None:
    """Ask as one user; a refusal has been written down by then, and ends this user."""
    try:
        await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=OUTPUT_TOKENS,
            extra_headers={USER_HEADER: str(user)},
        )
    except openai.APIStatusError as error:
        if error.status_code not in REFUSALS:
            raise
    else:
        record.served.append(user)
    advance()


def _result(options: BurstOptions, record: Record, engine: StagedEngine, gate: RunningGate) -> dict[str, Any]:
    stats = engine.stats()
    queued = sum(lane["queued"] + lane["running"] for lane in gate.state()["lanes"])
    result: dict[str, Any] = {
        "max_inflight": stats["peak_running_and_waiting"],
        "executed": stats["executed"],
        "yielded": len(record.first_hint),
        "inflight_after": stats["running"] + stats["waiting"] + queued,
        "hints": [round(hint, 3) for hint in record.hints],
    }
    if options.retries:
        result |= {
            "served": len(record.served),
            "attempts": [record.attempts[user] for user in range(options.users)],
            "order_kept": record.order_kept(),
        }
    return result


def _show_result(show: Show, options: BurstOptions, record: Record, result: dict[str, Any]) -> None:
    hints = sorted(record.hints)
    rows = [(name, str(value)) for name, value in result.items() if name != "hints"]
    if hints:
        rows.append(("hints", f"{len(hints)}, from {seconds(hints[0])} to {seconds(hints[-1])}"))
    table = table_of(
        f"Burst: {options.users} users at once, cap 1, nothing queued, {options.service_s:g} s each, "
        f"time scale {options.time_scale:g}",
        ("", "measured"),
        rows,
    )
    notes = (
        "max_inflight (running and waiting) and executed are the engine's own counters. Hints are real seconds.",
    )
    show.result(table, result, notes)
