"""`python -m lab demo isolation`: people who chat beside users with long prompts, on one engine.

An engine reads a long prompt between two steps of every answer beside it, so chat slows down although its own load is
small. The demo plays chat alone on the engine, both kinds of users on the engine, and both behind the gate. The gate gets
the usual flags (`--upstream --max-inflight --ttft-slo --tpot-slo`): it classes prompts by their size, and paces long ones.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

from lab.demos.closed_loop import closed_wishes
from lab.demos.patient_users import PatientUser, UserManners
from millgate.demos.connection import Endpoint
from millgate.demos.scores import SCALE_MEANS, quantile, share, tally
from millgate.demos.showing import Show, counted, percent, seconds, table_of
from millgate.demos.stage import (
    MOST_TIME_SCALE,
    DemoStage,
    EngineSetup,
    RunningGate,
    StagedEngine,
    perform,
    tokens_per_event,
    within,
)
from millgate.demos.users import Encoder, Mix, Story, UserEnding
from millgate.engine.profile import find_profile

SEQUENCES = 32
TTFT_SLO_S, TPOT_SLO_S = 1.0, 0.05
CHAT = Mix(300.0, 100.0, spread=0.1)
CHAT_THINKS_S, LONG_THINKS_S = 1.0, 0.2
CHAT_MANNERS = UserManners(patience_s=10.0, refreshes=0, returns=8)
LONG_MANNERS = UserManners(patience_s=60.0, refreshes=0, returns=8)
WARMUP_S = 60.0
"""For so long users ask before they are counted: the gate knows nothing of the engine's speed when it starts, and its pace of
long prompts settles within a minute."""
_DOORS = ("chat alone", "no gate", "gate")


@dataclass(frozen=True, slots=True)
class IsolationOptions:
    """What `lab demo isolation` may be told; times are engine seconds, real time is those over `time_scale`.

    `long_tokens` is the mean length of the long prompts, `run_s` for how long is counted.
    """

    chat_users: int = 6
    long_users: int = 4
    long_tokens: int = 4_000
    run_s: float = 60.0
    profile: str = "llama3-70b_a100_tp4"
    time_scale: float = 1.0
    seed: int = 1
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot run, naming the option."""
        within("chat_users", self.chat_users, 1, 64)
        within("long_users", self.long_users, 1, 64)
        within("long_tokens", self.long_tokens, 1_000, 32_000)
        within("run_s", self.run_s, 5.0, 3600.0)
        within("time_scale", self.time_scale, 0.1, MOST_TIME_SCALE)
        find_profile(self.profile)


class IsolationRun(NamedTuple):
    """One row of the result; times are engine seconds, None where nothing was there to measure.

    `chat_good_share` is of all chat requests; `long_tokens_per_s` counts the prompts of long requests that were answered whole.
    """

    door: str
    chat_requests: int
    chat_good_share: float
    chat_ttft_p95_s: float | None
    chat_tpot_p95_s: float | None
    long_tokens_per_s: float
    long_whole_share: float
    chat_refusals: dict[str, int]
    long_refusals: dict[str, int]


def run(options: IsolationOptions) -> int:
    """Run the demo and print its table; 0 when it ran, 1 when a process failed, 130 after Ctrl-C."""
    show = Show(as_json=options.json)

    def play(stage: DemoStage) -> None:
        _show_result(show, options, Isolation(options, stage, show).play())

    return perform(show, play)


class Isolation:
    """The experiment: every door on a fresh engine, with users of the same seed."""

    def __init__(self, options: IsolationOptions, stage: DemoStage, show: Show) -> None:
        self._options = options
        self._stage = stage
        self._show = show
        self._engine = EngineSetup(options.profile, options.time_scale, max_num_seqs=SEQUENCES)
        self._encode = Encoder(tokens_per_event=tokens_per_event(self._engine), max_tokens=1_000)

    def play(self) -> list[IsolationRun]:
        """Run every door in turn and return what came of it."""
        return [self._run(door) for door in _DOORS]

    def _run(self, door: str) -> IsolationRun:
        engine = self._stage.start_engine(self._engine)
        front = self._gate(engine) if door == "gate" else engine
        endpoint = Endpoint(front.address)
        chat, long = asyncio.run(self._crowds(door, endpoint))
        if front is not engine:
            self._stage.stop(front)
        self._stage.stop(engine)
        return judged(door, chat, long, self._options)

    def _gate(self, engine: StagedEngine) -> RunningGate:
        scale = self._options.time_scale
        tpot_slo = ("--tpot-slo", f"{TPOT_SLO_S / scale:.6f}s")
        return self._stage.start_plain_gate(engine, SEQUENCES, TTFT_SLO_S / scale, *tpot_slo)

    async def _crowds(self, door: str, endpoint: Endpoint) -> tuple[list[Story], list[Story]]:
        options = self._options
        long_mix = Mix(float(options.long_tokens), 100.0, spread=0.05, most_prompt_tokens=40_000)
        long_users = 0 if door == "chat alone" else options.long_users
        with self._show.progress(door, options.chat_users + long_users) as advance:
            users = [
                self._asks(endpoint, CHAT, CHAT_MANNERS, CHAT_THINKS_S, number)
                for number in range(options.chat_users)
            ]
            users += [
                self._asks(endpoint, long_mix, LONG_MANNERS, LONG_THINKS_S, options.chat_users + number)
                for number in range(long_users)
            ]
            stories = await asyncio.gather(*users)
            advance(len(users))
        chat, long = stories[: options.chat_users], stories[options.chat_users :]
        return list(chain.from_iterable(chat)), list(chain.from_iterable(long))

    async def _asks(
        self, endpoint: Endpoint, mix: Mix, manners: UserManners, thinks_s: float, number: int
    ) -> list[Story]:
        """Think, ask and wait in turn until the run is over; return what was asked after the warm-up."""
        options, loop = self._options, asyncio.get_running_loop()
        scale, dice = options.time_scale, random.Random(options.seed * 1_000 + number)
        wishes = closed_wishes(mix, options.seed * 1_000 + number)
        real = UserManners(manners.patience_s / scale, manners.refreshes, manners.returns)
        counted_from = loop.time() + WARMUP_S / scale
        until = counted_from + options.run_s / scale
        stories: list[Story] = []
        for asked, wish in enumerate(wishes):
            await asyncio.sleep(dice.expovariate(1.0 / thinks_s) / scale)
            asked_at = loop.time()
            if asked_at >= until:
                break
            body = self._encode(number * 100_000 + asked, wish)
            story = await PatientUser(endpoint, real).live(body)
            if asked_at >= counted_from:
                stories.append(
                    story._replace(prompt_tokens=wish.prompt_tokens, output_tokens=wish.output_tokens)
                )
        return stories


def judged(
    door: str, chat: Sequence[Story], long: Sequence[Story], options: IsolationOptions
) -> IsolationRun:
    """Judge one run from outside, by what its users saw; stories are in real seconds."""
    scale = options.time_scale
    whole = [story for story in long if story.ending is UserEnding.WHOLE]
    return IsolationRun(
        door=door,
        chat_requests=len(chat),
        chat_good_share=share(sum(is_good(story, scale) for story in chat), len(chat)),
        chat_ttft_p95_s=quantile([ttft * scale for ttft in _first_tokens_s(chat)], 0.95),
        chat_tpot_p95_s=quantile([tpot_s(story) * scale for story in chat if _is_whole(story)], 0.95),
        long_tokens_per_s=sum(story.prompt_tokens for story in whole) / options.run_s,
        long_whole_share=share(len(whole), len(long)),
        chat_refusals=tally(reason for story in chat for reason in story.reasons),
        long_refusals=tally(reason for story in long for reason in story.reasons),
    )


def is_good(story: Story, time_scale: float) -> bool:
    """Return whether an answer is whole, its first token came in time, and so did those after it."""
    if not _is_whole(story) or story.first_token_s is None:
        return False
    return story.first_token_s * time_scale <= TTFT_SLO_S and tpot_s(story) * time_scale <= TPOT_SLO_S


def tpot_s(story: Story) -> float:
    """Return the mean time between two tokens of a whole answer, in the seconds of its story."""
    assert story.first_token_s is not None
    return (story.total_s - story.first_token_s) / max(1, story.output_tokens - 1)


def _is_whole(story: Story) -> bool:
    return story.ending is UserEnding.WHOLE and story.first_token_s is not None


def _first_tokens_s(stories: Sequence[Story]) -> Iterator[float]:
    return (story.first_token_s for story in stories if story.first_token_s is not None)


def _show_result(show: Show, options: IsolationOptions, runs: list[IsolationRun]) -> None:
    table = table_of(
        f"Isolation: {options.profile}, {options.chat_users} chat users beside {options.long_users} with prompts of "
        f"{options.long_tokens:,} tokens for {options.run_s:g} s, time scale {options.time_scale:g}",
        (
            "",
            "chat good",
            "TTFT p95",
            "TPOT p95",
            "chat refused",
            "long tokens/s",
            "long whole",
            "long refused",
        ),
        (_row(each) for each in runs),
    )
    show.result(table, _record(options, runs), _notes())


def _row(each: IsolationRun) -> tuple[str, ...]:
    return (
        each.door,
        percent(each.chat_good_share),
        seconds(each.chat_ttft_p95_s),
        "-" if each.chat_tpot_p95_s is None else f"{1e3 * each.chat_tpot_p95_s:.0f} ms",
        counted(each.chat_refusals),
        f"{each.long_tokens_per_s:,.0f}",
        percent(each.long_whole_share),
        counted(each.long_refusals),
    )


def _notes() -> tuple[str, ...]:
    return (
        f"good: whole, first token within {TTFT_SLO_S:g} s of the first attempt, then {1e3 * TPOT_SLO_S:g} ms a token at most.",
        "long tokens/s: prompt tokens of long requests that were answered whole; long whole: their share.",
        "The bound of any fixed pace of long prompts is in `python -m lab run prefill_isolation`.",
        SCALE_MEANS,
    )


def _record(options: IsolationOptions, runs: list[IsolationRun]) -> dict[str, Any]:
    rounded = [
        {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in each._asdict().items()
        }
        for each in runs
    ]
    return {"demo": "isolation", "options": asdict(options), "runs": rounded}
