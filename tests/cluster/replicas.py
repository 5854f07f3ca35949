"""Replicas that follow the protocol, as automata: what each may act on at every instant, over a network that loses and repeats."""

from dataclasses import dataclass, field

from millgate.cluster.contract import FencedError, Granted, Holding, Kind, Renewal, share_key
from millgate.cluster.ledger import LeaseLedger

STREAMS, RATE = share_key(Kind.STREAMS, "gpu"), share_key(Kind.RATE, "acme", "tpm")
LEASE_S, RENEWAL_S, LINGERS_S, HANG_UP_S = 2.0, 0.25, 6.0, 0.3


@dataclass(slots=True)
class Sent:
    """A renewal on its way, and the answer where the store has given one."""

    renewal: Renewal
    sent_at: float
    answer: Granted | FencedError | None = None


@dataclass(slots=True)
class Replica:
    """One run of one process; `shares` may be used until `lease_ends_at`."""

    name: str
    epoch: int = 0
    applied: int = 0
    lease_ends_at: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)
    used: int = 0
    wanted: float = 0.0
    stopped: bool = False
    awaited: Sent | None = None

    def share(self, key: str, now: float) -> float:
        """Return what a lease lets it use now."""
        return self.shares.get(key, 0.0) if now < self.lease_ends_at else 0.0

    def acts_on(self, key: str, now: float) -> float:
        """Return what it may be using now, or at any time until it hears from the store again."""
        return max(self.share(key, now), self.used if key == STREAMS else 0.0)

    def compose(self, whole: dict[str, float], seen: tuple[float, float] | None, now: float) -> Sent:
        gauge, age_s = seen or (None, 0.0)
        streams = Holding(STREAMS, whole[STREAMS], self.used, max(self.used, self.wanted), 1.0, LINGERS_S)
        streams = streams._replace(seen=gauge, seen_age_s=age_s, held=self.share(STREAMS, now))
        rate = Holding(RATE, whole[RATE], 0.0, self.wanted * 10.0, held=self.share(RATE, now))
        renewal = Renewal(self.name, self.epoch, self.applied, LEASE_S, (streams, rate))
        self.awaited = Sent(renewal, now)
        return self.awaited

    def take(self, sent: Sent) -> None:
        """Take the answer to the renewal that it waits for; a late or repeated one is ignored."""
        if sent is not self.awaited:
            return
        self.awaited = None
        if isinstance(sent.answer, Granted):
            self.epoch, self.applied = sent.answer.epoch, sent.answer.number
            self.shares = {share.key: share.amount for share in sent.answer.shares}
            self.lease_ends_at = sent.sent_at + sent.answer.lease_s
        elif sent.answer is not None:
            self.epoch, self.shares = 0, {}


class Cluster:
    """Replicas, one ledger, one engine that counts, and a clock of the store that may be wrong."""

    def __init__(self) -> None:
        self.now = self.clock_offset = 100.0
        self.ledger = LeaseLedger(may_have_lost=False)
        self.replicas: dict[str, Replica] = {}
        self.whole = {STREAMS: 8.0, RATE: 100.0}
        self.reported: dict[str, dict[str, float]] = {}
        self.orphans: list[float] = []
        self.forgotten: set[str] = set()
        self.gauge: list[tuple[float, float]] = []
        self.names = 0

    def start(self) -> Replica:
        self.names += 1
        name = f"replica-{self.names}"
        self.replicas[name] = Replica(name)
        return self.replicas[name]

    def kill(self, replica: Replica) -> None:
        """The process is gone; the engine sees its hang-ups a little later."""
        del self.replicas[replica.name]
        if replica.name not in self.forgotten or self.now < replica.lease_ends_at:
            self.orphans += [self.now + HANG_UP_S] * replica.used
        self.forgotten.discard(replica.name)

    def running(self) -> float:
        """What the engine runs now, of all replicas."""
        return sum((each.used for each in self.replicas.values()), len(self.orphans))

    def passes(self, step_s: float) -> None:
        self.now += step_s
        self.orphans = [ends_at for ends_at in self.orphans if ends_at > self.now]
        for replica in self.replicas.values():
            # No answer lasts longer than it may.
            if self.now >= replica.lease_ends_at + LINGERS_S:
                replica.used = 0
        self.gauge.append((self.now, self.running()))
        self.gauge = self.gauge[-20:]

    def read_gauge(self, age_s: float) -> tuple[float, float] | None:
        """The newest reading that is at least so old."""
        old = [(read_at, count) for read_at, count in self.gauge if read_at <= self.now - age_s]
        return (old[-1][1], self.now - old[-1][0]) if old else None

    def deliver(self, sent: Sent) -> None:
        """The store takes this renewal, perhaps not for the first time; only the first answer reaches the replica."""
        try:
            answer: Granted | FencedError = self.ledger.renew(sent.renewal, self.now + self.clock_offset)
        except FencedError as ended:
            answer = ended
        else:
            self.reported[sent.renewal.replica] = {each.key: each.whole for each in sent.renewal.holdings}
            self.forgotten.discard(sent.renewal.replica)
        if sent.answer is None:
            sent.answer = answer

    def renew(self, replica: Replica, age_s: float = 0.0) -> None:
        """Everything goes well; a replica that is fenced joins at once."""
        for _ in range(2):
            sent = replica.compose(self.whole, self.read_gauge(age_s), self.now)
            self.deliver(sent)
            replica.take(sent)
            if isinstance(sent.answer, Granted):
                return

    def flush(self) -> None:
        """The store loses everything, and with it what replicas without a lease have left at the engine."""
        self.ledger = LeaseLedger(may_have_lost=True)
        self.forgotten = set(self.replicas)

    def acted_on(self, key: str) -> float:
        """The sum of what all replicas may be using of a number."""
        known = [each for each in self.replicas.values() if each.name not in self.forgotten]
        lost = [each for each in self.replicas.values() if each.name in self.forgotten]
        total = sum((each.acts_on(key, self.now) for each in known), 0.0)
        total += len(self.orphans) if key == STREAMS else 0
        total += sum((each.acts_on(key, self.now) for each in lost if self.now < each.lease_ends_at), 0.0)
        return total

    def most(self, key: str) -> float:
        """The whole, or the largest of which a replica has told the store last."""
        return max(self.whole[key], *(whole[key] for whole in self.reported.values()), 0.0)


def shares_of(granted: Granted) -> dict[str, float]:
    return {share.key: share.amount for share in granted.shares}
