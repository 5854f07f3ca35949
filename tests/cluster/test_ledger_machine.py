"""INV-11: the sum of what all replicas may use of a shared number is never above the whole, whatever happens to them."""

from hypothesis import settings as profile, strategies as some
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.replicas import LEASE_S, LINGERS_S, RATE, RENEWAL_S, STREAMS, Cluster, Replica, Sent

_ROUNDING = 1e-6
_which = some.integers(0, 7)


class Life(RuleBasedStateMachine):
    """Random renewals, losses, repetitions, kills, stops, moving limits, jumps of the store's clock and losses of its state."""

    wire = Bundle[Sent]("wire")

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.before = {STREAMS: 0.0, RATE: 0.0}

    @initialize(count=some.integers(1, 3))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.cluster.start()

    def _one(self, which: int, *, awake: bool = True) -> Replica | None:
        found = [each for each in self.cluster.replicas.values() if not (awake and each.stopped)]
        return found[which % len(found)] if found else None

    @rule(step_s=some.sampled_from([0.01, 0.1, RENEWAL_S, RENEWAL_S, 0.6, LEASE_S + 0.1]))
    def time_passes(self, step_s: float) -> None:
        self.cluster.passes(step_s)

    @rule(which=_which, age_s=some.sampled_from([0.0, 0.1, 0.5]))
    def renew(self, which: int, age_s: float) -> None:
        if replica := self._one(which):
            self.cluster.renew(replica, age_s)

    @rule(which=_which)
    def answer_is_lost(self, which: int) -> None:
        if replica := self._one(which):
            self.cluster.deliver(replica.compose(self.cluster.whole, None, self.cluster.now))

    @rule(rounds=some.integers(1, 12))
    def all_renew(self, rounds: int) -> None:
        for _ in range(rounds):
            self.cluster.passes(RENEWAL_S)
            for replica in [each for each in self.cluster.replicas.values() if not each.stopped]:
                self.cluster.renew(replica)
                self.holds()

    @rule(target=wire, which=_which)
    def send(self, which: int) -> Sent:
        replica = self._one(which) or self.cluster.start()
        return replica.compose(self.cluster.whole, self.cluster.read_gauge(0.1), self.cluster.now)

    @rule(sent=wire)
    def arrives_at_the_store(self, sent: Sent) -> None:
        self.cluster.deliver(sent)

    @rule(sent=wire)
    def answer_arrives(self, sent: Sent) -> None:
        replica = self.cluster.replicas.get(sent.renewal.replica)
        if replica and not replica.stopped and sent.answer is not None:
            replica.take(sent)

    @rule(which=_which, wanted=some.sampled_from([0, 1, 3, 8, 20]))
    def demand_changes(self, which: int, wanted: int) -> None:
        if replica := self._one(which):
            replica.wanted = float(wanted)

    @rule(which=_which)
    def streams_start(self, which: int) -> None:
        if replica := self._one(which):
            replica.used = max(replica.used, int(replica.share(STREAMS, self.cluster.now)))

    @rule(which=_which, count=some.integers(1, 8))
    def streams_end(self, which: int, count: int) -> None:
        if replica := self._one(which, awake=False):
            replica.used = max(0, replica.used - count)

    @rule(which=_which)
    def killed(self, which: int) -> None:
        if replica := self._one(which, awake=False):
            self.cluster.kill(replica)

    @rule(which=_which)
    def stopped_or_cut_off(self, which: int) -> None:
        if replica := self._one(which):
            replica.stopped = True

    @rule(which=_which)
    def goes_on(self, which: int) -> None:
        if replica := self._one(which, awake=False):
            replica.stopped = False

    @precondition(lambda self: len(self.cluster.replicas) < 5)
    @rule()
    def one_more_starts(self) -> None:
        self.cluster.renew(self.cluster.start())

    @rule(which=_which)
    def leaves(self, which: int) -> None:
        if replica := self._one(which):
            replica.used = 0
            self.cluster.renew(replica)
            self.cluster.ledger.leave(replica.name, replica.epoch)
            self.cluster.kill(replica)

    @rule(streams=some.sampled_from([0, 2, 7, 8, 16]))
    def limit_moves(self, streams: int) -> None:
        self.cluster.whole[STREAMS] = float(streams)

    @rule(by_s=some.sampled_from([-3600.0, -1.0, 7200.0]))
    def store_clock_jumps(self, by_s: float) -> None:
        self.cluster.clock_offset += by_s

    @rule()
    def store_loses_its_state(self) -> None:
        self.cluster.flush()

    @invariant()
    def holds(self) -> None:
        for key in (STREAMS, RATE):
            acted_on = self.cluster.acted_on(key)
            assert acted_on <= max(self.cluster.most(key), self.before[key]) + _ROUNDING
            self.before[key] = acted_on

    def teardown(self) -> None:
        """All is well again: within a lease, what lingers, and a few renewals everything is shared out."""
        cluster = self.cluster
        for replica in cluster.replicas.values():
            replica.stopped, replica.wanted, replica.used = False, 20.0, 0
        whole_again = set()
        rounds = int((2 * LEASE_S + LINGERS_S) / RENEWAL_S) + 8
        for count in range(rounds):
            cluster.passes(RENEWAL_S)
            for replica in cluster.replicas.values():
                cluster.renew(replica)
                self.holds()
            # For two renewals in every rotation one unit is on its way.
            if count >= rounds - 4:
                whole_again |= {key for key in (STREAMS, RATE) if self._is_shared_out(key)}
        assert not cluster.replicas or whole_again == {STREAMS, RATE}

    def _is_shared_out(self, key: str) -> bool:
        total = sum((each.share(key, self.cluster.now) for each in self.cluster.replicas.values()), 0.0)
        return abs(total - self.cluster.whole[key]) < _ROUNDING


TestLife = Life.TestCase
TestLife.settings = profile(
    max_examples=100,
    stateful_step_count=60,
)
