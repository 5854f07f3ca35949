"""What calls and attempts share: the door that decides, the engines' addresses, the bytes, and what runs."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from millgate.core.events import Arrived
from millgate.dialects.contract import RequestFacts
from millgate.http1.server.budget import ByteBudget, Share
from millgate.http1.server.contract import Application, Exchange, RequestHead
from millgate.http1.wire.fields import HOP_BY_HOP
from millgate.servers.extproc.attempt import EnvoyAttempt
from millgate.servers.extproc.call import EnvoyExchange
from millgate.servers.extproc.contract import AskingDoor, Destination
from millgate.servers.extproc.extension import allowed, in_own_terms
from millgate.servers.extproc.running import RunningRequests
from millgate.servers.extproc.settings import CONTROL_HEADERS, DESTINATION, ExtprocSettings
from millgate.servers.requests.fields import Pairs, for_engine, with_credential, without_credentials
from millgate.servers.requests.reading import HeadReading

_CONTROL: Final = frozenset(name.encode() for name in CONTROL_HEADERS)
_OURS: Final = (b"x-request-id", DESTINATION.encode())
_ENVOYS_OWN: Final = HOP_BY_HOP | {b"host", b"content-length", b"expect", *_OURS}
"""Headers that Envoy writes anew, or that we set."""


class DecidingDoor(Application, AskingDoor, Protocol):
    """The door that reads requests and asks the core: the same as behind our own HTTP server."""


class ExtprocDesk:
    """One for all streams; `destinations` are the engines that the core knows, by the same names."""

    def __init__(
        self,
        door: DecidingDoor,
        settings: ExtprocSettings,
        destinations: Mapping[str, Destination],
        budget: ByteBudget,
        tenant_of: Callable[[RequestHead], str],
        ask_by_head: Callable[[Exchange], None],
        now: Callable[[], float],
    ) -> None:
        self.application = door
        self.ask_by_head = ask_by_head
        self.door = door
        self.settings = settings
        self.destinations = destinations
        self.running = RunningRequests(now)
        self._budget = budget
        self._tenant_of = tenant_of

    @property
    def body_bytes(self) -> int:
        """The longest body."""
        return self.settings.body_bytes

    @property
    def lease_s(self) -> float:
        """How long a request may be silent past the time of its first event."""
        return self.settings.lease_s

    def make_attempt(
        self,
        exchange: Exchange,
        number: int,
        request_id: bytes,
        reading: HeadReading,
        facts: RequestFacts,
        body: bytes,
    ) -> EnvoyAttempt:
        """Return the attempt of an exchange that came through Envoy."""
        assert isinstance(exchange, EnvoyExchange)
        return EnvoyAttempt(self, self.door, exchange, number, request_id, reading, facts, body)

    def share_of(self, head: RequestHead) -> Share:
        """Return where the bytes of this request's body are booked: on its tenant; its peer is one Envoy for all."""
        return self._budget.share(self._tenant_of(head), "")

    def arrange(self, head: RequestHead) -> RequestHead:
        """Return the head with what the Inference Extension's headers say in our own."""
        return in_own_terms(head, self.settings.objective_lanes)

    def fields_of(
        self, head: RequestHead, reading: HeadReading, destination: Destination
    ) -> tuple[Pairs, list[str]]:
        """Return what is set on a request for this engine, and which of its headers stay here."""
        onward = for_engine(head.headers, trusted=reading.trusted)
        if reading.callers.guarded:  # a key of ours
            onward = without_credentials(onward)
        fields: Pairs = []
        if destination.credential is not None:
            speaks = [pair for pair in onward if pair[0] == b"anthropic-version"]
            fields = with_credential(speaks, destination.credential)[len(speaks) :]
            onward = without_credentials(onward)
        if destination.base_path:
            fields.append((b":path", destination.base_path + head.target))
        sent = {name for name, _ in head.headers}
        passed = {name for name, _ in onward} - _CONTROL
        stays = sent - passed - _ENVOYS_OWN - {name for name, _ in fields}
        return fields, [name.decode("latin-1") for name in sorted(stays)]

    def adjust(self, exchange: Exchange, arrival: Arrived) -> Arrived:
        """Return the arrival with what only Envoy says: the one engine that it may go to, and how its answer is seen."""
        assert isinstance(exchange, EnvoyExchange)
        return arrival._replace(
            engine=exchange.confined_to or arrival.engine, seen_late=not exchange.sees_answer
        )

    def engine_of(self, subset: tuple[str, ...]) -> str | None:
        """Return the engine to which a request is confined that may go to these endpoints alone, empty for any.

        None where there is no such engine. Of several it is the one with the most room now: the core knows one engine
        for a request, or all.
        """
        names = allowed({name: each.address for name, each in self.destinations.items()}, subset)
        if not names:
            return None
        return "" if len(names) == len(self.destinations) else min(names, key=self._fullness().__getitem__)

    def _fullness(self) -> dict[str, float]:
        """Return how full each engine is, of those that are down: full."""
        engines = self.door.driver.snapshot().engines
        return {each.name: each.running / max(1, each.limit) if each.up else 1e9 for each in engines}
