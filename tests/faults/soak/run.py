"""The soak: the real gate between users and engines that do everything wrong, and the accounts afterwards."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.process import GateProcess
from faults.soak.connection import Connection
from faults.soak.engines import Engine
from faults.soak.ledger import Ledger
from faults.soak.report import Report, growth
from faults.soak.strangers import TOKEN, AdminStranger, Stranger
from faults.soak.users import User
from faults.soak.watch import Course, Sample, Watch
from faults.soak_scenes import SCENES, Outage, Scene

CAP = 8
"""Of each engine."""

_LEAVE_WITHIN_S = 45.0
"""The longest that a polite user waits for an answer, and some more."""

MOST_ABOVE_CAP_S = 0.3
"""At a time: the abort lag that the gate starts with."""
MOST_ABOVE_CAP_SHARE = 0.01
"""Of all the time: what was cut is still seen by the engine for a turn of its loop, and that is short."""

_OWN_DESCRIPTORS = 2
"""The admin door's client, besides the watch of each engine's gauges."""
_QUIET_WITHIN_S = 10.0
_APPOINTMENTS_WITHIN_S = 75.0
"""The longest hint, and how long after it a place still counts."""
_TURNS_WITHIN_S = 4.0
"""Within which time the gate must know that all engines are dead, or one is back: looks a second apart, and a margin."""
MOST_STALL_S = 3.0
"""What the loop may stand still at a time: this machine may be busy, but not for so long."""

_SETTINGS = {
    "lanes.*.ttft_slo": "2s",
    "lanes.*.max_queue": "16",
    "limits.first_event": "2s",
    # Longer than any pause of a user, though the machine stand still for some seconds.
    "limits.idle": "6s",
    # So few that all are in memory when the warm-up is over.
    "records.kept_attempts": "500",
}
_AT_REST = (
    "millgate_queued",
    "millgate_running",
    "millgate_engine_running",
    "millgate_engine_departing",
    "millgate_engine_kv_tokens",
    "millgate_engine_prefill_tokens",
    "millgate_door_body_bytes",
    "millgate_appointments ",
)
"""Gauges, by the beginning of their names, that must be zero when nobody asks."""


class Soak:
    """One gate, its engines, its users, and everything that is known of them."""

    def __init__(self, folder: Path, seed: int, scene: Scene = SCENES["everything"]) -> None:
        self._seed = seed
        self._scene = scene
        self._log = folder / "attempts.jsonl"
        self._errors = folder / "stderr.txt"
        self._ledger = Ledger()
        self._own_descriptors = _OWN_DESCRIPTORS + scene.engines
        self._engines = [
            Engine(CAP, random.Random(f"engine {n} of {seed}"), scene.faults, scene.pages)
            for n in range(scene.engines)
        ]
        self._findings: list[str] = []

    async def run(self, seconds: float) -> Report:
        """Soak a gate for so long, let everybody leave, and return the accounts."""
        async with contextlib.AsyncExitStack() as stack:
            for engine in self._engines:
                await engine.run(stack)
            gate = await asyncio.to_thread(self._start)
            try:
                watch = Watch(gate)
                await self._load(gate, watch, seconds)
                ended = await asyncio.to_thread(self._rest, gate)
                courses = watch.courses(await _quiet(watch, self._own_descriptors))
                cpu_s = gate.cpu_s
            finally:
                code = await asyncio.to_thread(gate.stop)
        self._findings += self._judge(gate, code, ended)
        self._findings += self._above_cap(seconds)
        self._findings += growth(*courses, self._own_descriptors)
        return self._report(seconds, cpu_s, ended, courses)

    def _start(self) -> GateProcess:
        settings = {**_SETTINGS, "records.log_attempts": str(self._log)}
        if self._scene.strangers:
            settings["line.port"] = "0"
        urls = [engine.proxy.url for engine in self._engines]
        return GateProcess(
            *urls,
            errors=self._errors,
            settings=settings,
            max_inflight=CAP,
            open_files=self._scene.open_files,
            environ={"MILLGATE_LINE_TOKEN": TOKEN, "MILLGATE_ADMIN_TOKEN": TOKEN},
        )

    async def _load(self, gate: GateProcess, watch: Watch, seconds: float) -> None:
        """Let the users ask for so long, wait for their last answers, and let the engines' faults be over."""
        over = asyncio.Event()
        users = [
            asyncio.create_task(self._user(gate, number).run(over)) for number in range(self._scene.users)
        ]
        others = [asyncio.create_task(_say_nothing(gate.port, over)) for _ in range(self._scene.idle_clients)]
        strangers = self._strangers(gate)
        others += [asyncio.create_task(stranger.run(over)) for stranger in strangers]
        if self._scene.outage is not None:
            others.append(asyncio.create_task(self._die_and_come_back(gate, self._scene.outage, over)))
        await watch.run(seconds)
        over.set()
        self._findings += await _stuck(others, "a task beside the users")
        await asyncio.gather(*(other for other in others if other.done()))
        self._findings += [finding for stranger in strangers for finding in stranger.findings]
        self._findings += ["a stranger was never let in" for each in strangers if not each.visits]
        _done, late = await asyncio.wait(users, timeout=_LEAVE_WITHIN_S)
        for user in late:
            user.cancel()
        self._findings += await _stuck(users, "a user who was sent away")
        ends = await asyncio.gather(*(user for user in users if user.done()), return_exceptions=True)
        self._findings += [f"user {number}: {end!r}" for number, end in enumerate(ends) if end is not None]
        if not gate.alive:
            raise SystemExit(f"the gate has died: {gate.errors()}")
        for engine in self._engines:
            await engine.calm()

    async def _die_and_come_back(self, gate: GateProcess, outage: Outage, over: asyncio.Event) -> None:
        """Let all engines live and be dead in turn; the gate must know it, while its users go on asking."""
        while not await _is_over(over, outage.alive_s):
            for engine in self._engines:
                await engine.die()
            await self._become_ready(gate, 503)
            await _is_over(over, outage.dead_s)
            for engine in self._engines:
                await engine.come_back()
            await self._become_ready(gate, 200)

    async def _become_ready(self, gate: GateProcess, status: int) -> None:
        by = time.monotonic() + _TURNS_WITHIN_S
        while (await asyncio.to_thread(gate.ask, "/readyz"))[0] != status:
            if time.monotonic() > by:
                self._findings.append(f"/readyz was not {status} within {_TURNS_WITHIN_S:g} s of a turn")
                return
            await asyncio.sleep(0.05)

    def _user(self, gate: GateProcess, number: int) -> User:
        dice = random.Random(f"user {number} of {self._seed}")
        name, crowded = f"soak-{self._seed}-{number}", bool(self._scene.idle_clients)
        return User(gate.port, name, dice, self._ledger, crowded=crowded)

    def _strangers(self, gate: GateProcess) -> list[Stranger]:
        """Return those of both doors."""
        kinds: list[tuple[type[Stranger], str, int]] = [
            (Stranger, "line_address", self._scene.strangers),
            (AdminStranger, "admin_url", self._scene.admin_strangers),
        ]
        return [
            kind(
                int(gate.ready[where].rstrip("/").rpartition(":")[2]),
                number,
                random.Random(f"stranger {number} of {self._seed}"),
            )
            for kind, where, most in kinds
            for number in range(most)
        ]

    # ---- afterwards

    def _rest(self, gate: GateProcess) -> dict[str, int]:
        """Return the outcomes when nothing is in flight any more, and look at every gauge."""
        try:
            ended = gate.ended()
        except AssertionError as error:
            self._findings.append(str(error))
            return {}
        by = time.monotonic() + _APPOINTMENTS_WITHIN_S
        while gate.state()["retries"]["appointments"] and time.monotonic() < by:
            time.sleep(0.1)
        page = gate.ask("/metrics")[1].decode()
        busy = [line for line in page.splitlines() if line.startswith(_AT_REST) and not line.endswith(" 0.0")]
        self._findings += [f"not at rest: {line}" for line in busy]
        return ended

    def _judge(self, gate: GateProcess, code: int, ended: dict[str, int]) -> Iterator[str]:
        """Yield what does not hold: the end of the process, and the accounts."""
        if code:
            yield f"the gate ended with {code}"
        if "uncaught failure" in gate.errors():
            yield gate.errors()[-3000:]
        yield from _told(gate.errors())
        yield from self._ledger.compare(self._log, self._executed())
        written = len(self._log.read_bytes().splitlines())
        if written != sum(ended.values()):
            yield f"{written} outcomes were written and {sum(ended.values())} counted"

    def _above_cap(self, seconds: float) -> Iterator[str]:
        """Yield which engine works on, or worked for more than it may for longer than an abort takes."""
        for number, engine in enumerate(self._engines):
            if engine.working:
                yield f"engine {number} still works for {engine.working}"
            if engine.longest_above_s > MOST_ABOVE_CAP_S or engine.above_s > MOST_ABOVE_CAP_SHARE * seconds:
                yield (
                    f"engine {number} was above its cap for {engine.longest_above_s:.3f} s at a time "
                    f"and {engine.above_s:.3f} s in all"
                )

    def _executed(self) -> dict[str, list[str]]:
        """Return what the engines did to each attempt that reached them."""
        found: dict[str, list[str]] = {}
        for name, done in (each for engine in self._engines for each in engine.executed):
            found.setdefault(name, []).append(done)
        return found

    def _report(
        self, seconds: float, cpu_s: float, ended: dict[str, int], courses: tuple[Course, Course]
    ) -> Report:
        entries = self._ledger.entries.values()
        seen = self._ledger.matrix(self._log)
        return Report(
            scene=self._scene.name,
            seed=self._seed,
            seconds=seconds,
            sent=len(entries),
            unsure=sum(not entry.sure for entry in entries),
            written=seen.total(),
            outcomes=ended,
            seen=dict(seen),
            executed=sum(len(engine.executed) for engine in self._engines),
            cap=CAP,
            most_at_once=tuple(engine.most for engine in self._engines),
            longest_above_cap_s=max(engine.longest_above_s for engine in self._engines),
            above_cap_s=sum(engine.above_s for engine in self._engines),
            memory_mb=courses[0],
            descriptors=courses[1],
            cpu_s=cpu_s,
            faults=dict(sum((engine.faults for engine in self._engines), Counter[str]())),
            behaviours=dict(self._ledger.behaviours),
            findings=self._findings,
        )


def _told(errors: str) -> Iterator[str]:
    """Yield what the gate's log says of itself that it must never have to say."""
    for line in errors.splitlines():
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        if said["event"] == "unexpected failure":
            yield f"the gate says: {line}"
        if said["event"] == "the loop stood still" and said["seconds"] > MOST_STALL_S:
            yield f"the loop stood still for {said['seconds']} s"


async def _is_over(over: asyncio.Event, within_s: float) -> bool:
    """Wait for so long, or until it is over; return whether it is."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), within_s)
    return over.is_set()


async def _stuck(tasks: Sequence[asyncio.Task[None]], what: str) -> list[str]:
    """Wait for these tasks, and name where each stands that does not end: a hang must not look like a long run."""
    if not tasks:
        return []
    _done, left = await asyncio.wait(tasks, timeout=_LEAVE_WITHIN_S)
    return [f"{what} does not end: {task.get_stack(limit=4)}" for task in left]


async def _say_nothing(port: int, over: asyncio.Event) -> None:
    """Be connected and silent, anew whenever the gate has had enough, until it is over."""
    while not over.is_set():
        connection = Connection()
        with contextlib.suppress(ConnectionError):
            await connection.connect(port)
            hearing = asyncio.ensure_future(connection.more())
            ending = asyncio.ensure_future(over.wait())
            await asyncio.wait((hearing, ending), return_when=asyncio.FIRST_COMPLETED)
            for task in (hearing, ending):
                task.cancel()
            await asyncio.gather(hearing, ending, return_exceptions=True)
        connection.close()
        await _is_over(over, 0.1)


async def _quiet(watch: Watch, own_descriptors: int) -> Sample:
    """Return what the gate has when its connections are closed, or after a while what it then has."""
    for _ in range(int(_QUIET_WITHIN_S / 0.1)):
        sample = watch.look()
        if sample.descriptors <= watch.samples[0].descriptors + own_descriptors:
            break
        await asyncio.sleep(0.1)
    return sample
