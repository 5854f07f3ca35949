"""A small world for the governor: clients who come back as they are told, and engines that take as long as they take.

A heap of things to do is the clock. Nothing here knows how the governor decides: it hands in events and does what
the decisions say, so what it measures (attempts, order, idle time) is what users would see.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from millgate.core.decisions import Admit, Decision, Ended, Queue, Yield
from millgate.core.events import Arrived, Event, Finished, FirstToken, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.words import DeadlineFrom, Outcome
from millgate.wiring.governor import build_governor

OUTPUT_TOKENS = 100


def governor(
    *lanes: LaneSettings, engines: tuple[EngineSettings, ...], max_appointments: int = 100_000
) -> Governor:
    """Return a governor that starts at time 0."""
    return build_governor(Settings(lanes, engines, max_appointments), 0.0)


def steady_prior(service_s: float, ttft_s: float = 0.1) -> ServicePrior:
    """Return the belief that an answer of `OUTPUT_TOKENS` takes this long, at any load and prompt."""
    return ServicePrior(ttft_s, 0.0, (service_s - ttft_s) / OUTPUT_TOKENS, 0.0)


def primitive(cap: int, service_s: float, max_queue: int = 0) -> Governor:
    """Return the pure primitive: a hard cap and a yield, nothing queued but who is due (and as many more as told)."""
    lane = LaneSettings(
        "primitive",
        ttft_slo_s=3600.0,
        deadline_s=3600.0,
        deadline_from=DeadlineFrom.ATTEMPT,
        max_queue=max_queue,
    )
    return governor(lane, engines=(EngineSettings("engine", cap, prior=steady_prior(service_s)),))


@dataclass(eq=False)
class Client:
    """One user with one request: what is asked, how long its answer really takes, and what became of it."""

    name: int
    service_s: float
    tenant: str = ""
    body: int = 0
    ttft_s: float = 0.1
    prompt_bytes: int = 400
    max_tokens: int | None = OUTPUT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    lane: str | None = None
    returns: bool = True
    label: Callable[[int], int | None] = lambda _attempts: None
    attempts: int = 0
    came_at: float = 0.0
    admitted_at: float | None = None
    ended: Ended | None = None
    yields: list[Yield] = field(default_factory=list)


class World:
    """Runs clients against a governor until nothing is left to do.

    During `stall`, from and to, the engines stand still.
    """

    def __init__(self, gate: Governor, stall: tuple[float, float] = (0.0, 0.0)) -> None:
        self.gate = gate
        self.stall = stall
        self.now = 0.0
        self.clients: dict[int, Client] = {}
        self.served: list[Client] = []
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.running = self.most_running = self.queued = 0
        self.busy_s = 0.0
        self._since = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._entries = 0
        self._attempts = 0
        self._woken_at: float | None = None

    def at(self, time: float, do: Callable[[], None]) -> None:
        """Put something on the agenda; equal times keep their order."""
        self._entries += 1
        heappush(self._agenda, (time, self._entries, do))

    def come(self, client: Client, time: float) -> None:
        """Let this client ask (again) at this time."""
        self.at(time, lambda: self._ask(client))

    def run(self, until: float = float("inf")) -> None:
        """Do everything on the agenda up to this time."""
        while self._agenda and self._agenda[0][0] <= until:
            time, _, do = heappop(self._agenda)
            self._pass(time)
            do()

    def send(self, event: Event) -> None:
        """Hand one event to the governor and do what it decides."""
        for decision in self.gate.handle(event, self.now):
            self._do(decision)
        wake = self.gate.next_wake()
        if wake is not None and (self._woken_at is None or wake < self._woken_at):
            self._woken_at = wake
            self.at(max(wake, self.now), self._tick)

    def _pass(self, time: float) -> None:
        self.busy_s += self.running * (time - self._since)
        self._since = self.now = time

    def _tick(self) -> None:
        self._woken_at = None
        self.send(Tick())

    def _ask(self, client: Client) -> None:
        if not client.attempts:
            client.came_at = self.now
        self._attempts += 1
        number = self._attempts
        self.clients[number] = client
        client.attempts += 1
        self.send(
            Arrived(
                number,
                tenant=client.tenant,
                lane=client.lane,
                prompt_bytes=client.prompt_bytes,
                max_tokens=client.max_tokens,
                retry_count=client.label(client.attempts),
                fingerprint=lambda: client.body,
            )
        )

    def _do(self, decision: Decision) -> None:
        client = self.clients[decision.attempt]
        if isinstance(decision, Admit):
            self._serve(client, decision)
        elif isinstance(decision, Yield):
            client.yields.append(decision)
            if client.returns and decision.retry:
                self.come(client, self.now + decision.retry_after_s)
        elif isinstance(decision, Queue):
            self.queued += 1
        elif isinstance(decision, Ended):
            client.ended = decision
            self.outcomes[decision.outcome] += 1

    def _serve(self, client: Client, decision: Admit) -> None:
        number = decision.attempt
        client.admitted_at = self.now
        self.served.append(client)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.at(self._after(client.ttft_s), lambda: self.send(FirstToken(number)))
        self.at(self._after(client.service_s), lambda: self._answer(number))

    def _after(self, work_s: float) -> float:
        """Return when so much engine time from now has passed."""
        start, end = self.stall
        stands_still = self.now < end and self.now + work_s > start
        return self.now + work_s + (end - max(self.now, start) if stands_still else 0.0)

    def _answer(self, number: int) -> None:
        self.running -= 1
        client = self.clients[number]
        self.send(Finished(number, max(1, client.prompt_bytes // 4), client.output_tokens))
        self.send(Released(number))
