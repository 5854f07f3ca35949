"""Shares of what a cluster's replicas share: put in force as they are granted, and what this replica holds and wants of each."""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, log
from typing import Final, NamedTuple

from millgate.core.events import EngineShare, LeaseGranted, OthersLine
from millgate.core.governor.allowances import RetryBudget, RetryShare
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.quota_lines import Elsewhere
from millgate.core.governor.tenant_streams import TENANT_LINE
from millgate.core.governor.watch import has_fresh_gauge
from millgate.core.measure import UPPER_SHARE, WINDOW_S
from millgate.core.quotas.bucket import PARTS, Bucket, Sizes, Supply
from millgate.core.settings import DAY_S, QuotaLimit
from millgate.core.snapshot import PoolLine, SharedNumber, SharedUse
from millgate.core.state.engine import Engine
from millgate.core.state.pool import Pool
from millgate.core.tickets import TOLERANCE_S
from millgate.core.tickets.attendance import Counts

QUOTA_LINE: Final = "quota/"
"""The line of a quota is named by this and its name; names have no slash, so that no pool is named so."""
_RETRY_LINE: Final = "retries/"
# What became of the appointments in all lines of quotas and of tenants.
_ALL_LINES: Final = "lines/"
_LEAST_LINGER_S: Final = 1.0
# A replica that does not know what the others admit leaves it to them how many retries there are.
_ANY_RETRIES: Final = 1e6


def put_in_force(knowledge: Knowledge, now: float) -> None:
    """Let gates, accounts and quotas count against the shares that this replica has now; nothing without a cluster."""
    granted = knowledge.lease.granted
    if granted is None:
        return
    shares = {share.engine: share for share in granted.engines}
    accounts = {account.engine: account for account in granted.accounts}
    for name, engine in knowledge.engines.by_name.items():
        share = shares.get(name) or EngineShare(name, 0)
        if share != engine.gate.share:
            engine.gate.leased(share)
            knowledge.engines.learned_of(engine)
        if engine.provider is not None:
            engine.provider.account.leased(accounts.get(name), now)
    lines = {line.pool: line for line in granted.lines}
    for pool in knowledge.engines.routes.pools:
        up = [engine.gate for engine in pool.engines if engine.up]
        elsewhere = sum([max(0, gate.stream_limit - gate.current()) for gate in up], 0)
        pool.shared_with(lines.get(pool.name), elsewhere, now)
    quotas = {quota.quota: quota for quota in granted.quotas}
    knowledge.allowances.leased(granted.until, now)
    knowledge.allowances.ledger.leased(quotas, granted.replicas, now)
    tenants = {share.tenant: share.streams for share in granted.tenants}
    away = {name: line.queued for name in tenants if (line := lines.get(TENANT_LINE + name)) is not None}
    knowledge.allowances.streams.leased(tenants, away)
    _share_lines(knowledge, granted.replicas, tenants, lines, now)
    if (budget := knowledge.allowances.budget) is not None:
        budget.leased(_retry_share(budget, granted, lines.get(_RETRY_LINE)))


def _retry_share(budget: RetryBudget, granted: LeaseGranted, others: OthersLine | None) -> RetryShare:
    """Return the share of the retry budget; without word of the others they are as they were last."""
    if granted.retries is None:
        return RetryShare()
    if others is not None:
        return RetryShare(granted.retries, others.work_s, is_known=True)
    before = budget.share if budget.share is not None and granted.replicas > 1 else RetryShare()
    return before._replace(retries=granted.retries, is_known=True)


def _share_lines(
    knowledge: Knowledge, replicas: int, tenants: Iterable[str], lines: Mapping[str, OthersLine], now: float
) -> None:
    """Let each shared quota's line, and that of each of these tenants, count with what other replicas have promised of it."""
    elsewhere: dict[Supply, Elsewhere] = {}
    none = OthersLine("", 0, 0.0)
    for rule, bucket in knowledge.allowances.ledger.shared():
        others = lines.get(QUOTA_LINE + rule.name) or none
        # What the others have on the mean, one of them has. Of a minute there is soon enough here.
        bucket.others_have(others.queued / max(1, replicas - 1) if rule.limit.period_s == DAY_S else 0.0)
        elsewhere[bucket] = Elsewhere(others.work_s, rule.limit.rate_per_s)
    others = lines.get(_ALL_LINES) or none
    counts: dict[str | None, Counts] = {None: (others.came, others.told)}
    for name in tenants:
        if (own := knowledge.allowances.streams.of(name)) is not None:
            others = lines.get(TENANT_LINE + name) or none
            elsewhere[own] = Elsewhere(others.work_s)
            counts[name] = others.came, others.told
    knowledge.allowances.lines.shared_with(elsewhere)
    knowledge.allowances.lines.attendance.shared_with(counts, now)


def shared_use(knowledge: Knowledge, now: float) -> SharedUse:
    """Return what this replica holds and wants of every shared number, and what waits before each pool; changes nothing."""
    numbers: list[SharedNumber] = []
    lines: list[PoolLine] = []
    pools = knowledge.engines.routes.pools
    for pool in pools:
        line = _Line(knowledge, pool, now)
        work_s = pool.queued_work_s + pool.appointments.work_s()
        lines.append(PoolLine(pool.name, pool.queued_count, work_s, *pool.appointments.attendance.counts()))
        for engine in pool.engines:
            numbers += _of_engine(engine, line, now)
            numbers += _of_account(engine, line, now)
    for engine in knowledge.engines.by_name.values():
        if engine.retired:
            # Other replicas may know it still: what runs there is theirs to use again only when it has ended.
            left = _Line(knowledge, knowledge.engines.routes.pool_of(engine), now)
            numbers += _leaving(_of_engine(engine, left, now))
    waiting, granted = knowledge.allowances.lines, knowledge.lease.granted
    replicas = 1 if granted is None else granted.replicas
    # No gauge tells tenants apart: what they have is out for as long as any answer may last.
    longest_s = max([each.lingers_s for each in numbers], default=0.0)
    tenants = knowledge.allowances.streams.uses(now, replicas, waiting, longest_s)
    numbers += [number for number, _ in tenants]
    lines += [line for _, line in tenants if any(line[1:])]
    if (budget := knowledge.allowances.budget) is not None:
        drain_per_s = max([pool.capacity_forecast.per_s() for pool in pools], default=0.0)
        numbers.append(_of_retries(budget, drain_per_s, now))
        lines.append(PoolLine(_RETRY_LINE, 0, budget.earned(now)))
    for rule, bucket in knowledge.allowances.ledger.shared():
        needed, missing = bucket.wanted(now), waiting.missing(bucket, now, waiting.attendance.here)
        numbers += _of_bucket(("rate", "burst"), (rule.name,), bucket, rule.limit, needed, now, missing)
        promised = waiting.missing(bucket, now, waiting.attendance.expected())
        lines.append(PoolLine(QUOTA_LINE + rule.name, int(max(0.0, bucket.level(now))), promised))
    lines.append(PoolLine(_ALL_LINES, 0, 0.0, *waiting.attendance.counts()))
    if knowledge.draining:
        numbers = _leaving(numbers)
    return SharedUse(tuple(numbers), tuple(lines))


def _leaving(numbers: Iterable[SharedNumber]) -> list[SharedNumber]:
    """Return these of a replica that takes nothing new: it wants what is out, until that has ended."""
    return [each._replace(wanted=each.used, floor=0.0) for each in numbers]


def _of_retries(budget: RetryBudget, drain_per_s: float, now: float) -> SharedNumber:
    is_known = budget.share is not None and budget.share.is_known
    whole = budget.whole(now, drain_per_s) if is_known else _ANY_RETRIES
    wanted = max(budget.spent(now), min(whole, budget.wanted(now)))
    return SharedNumber("retries", ("all",), whole, budget.spent(now), wanted, 0.0, WINDOW_S)


class _Line:
    """What is queued before one pool: permits for each of its engines, prompts, the heads, and how long the first has waited.

    Clients that are away may return to another replica than the one that told them to. So they count as one where
    nothing is queued: then there is a stream for the first that comes.
    """

    def __init__(self, knowledge: Knowledge, pool: Pool, now: float) -> None:
        engines = max(1, sum([engine.up for engine in pool.engines], 0))
        self.permits = (pool.queued_count or min(1, pool.appointments.open)) / engines
        self.queued_tokens = pool.queued_prompt_tokens / engines
        heads = [queue.order.head() for queue in pool.queues]
        self.heads = [knowledge.attempts.by_number[each.attempt].request for each in heads if each]
        self.waits_s = max([now - head.first_seen for head in self.heads], default=0.0)


class _Meter(NamedTuple):
    """One meter of an engine's gate: its limit, what is out, what waits for it, what one request needs at least, and one stream has."""

    kind: str
    whole: float
    used: float
    waiting: float
    least: float
    of_stream: float | None


def _of_engine(engine: Engine, line: _Line, now: float) -> Iterator[SharedNumber]:
    seen = engine.seen if has_fresh_gauge(engine, now) else None
    running = None if seen is None or seen.running is None else seen.running + (seen.waiting or 0)
    for meter in _meters(engine, line):
        wanted = meter.used + meter.waiting
        yield SharedNumber(
            meter.kind,
            (engine.settings.name,),
            meter.whole,
            meter.used,
            wanted,
            min(meter.whole, meter.least) if meter.used + meter.waiting else 0.0,
            _lingers_s(engine, now, prompts=meter.kind == "prefill"),
            None if running is None or meter.of_stream is None else running * meter.of_stream,
            0.0 if seen is None else now - seen.seen_at,
            line.waits_s if meter.waiting else 0.0,
        )


def _meters(engine: Engine, line: _Line) -> Iterator[_Meter]:
    gate, permits, streams = engine.gate, len(engine.permits), max(1, engine.gate.streams)
    each = gate.streams / permits if permits else 1.0
    least = max([gate.streams_of(head.arrival) for head in line.heads], default=1)
    yield _Meter("streams", gate.stream_limit, gate.streams, ceil(line.permits * each), max(1, least), 1.0)
    if gate.kv_limit is not None:
        usual = gate.kv_tokens / permits if permits else engine.work_prompt.mean + engine.work_output.mean
        least = max([head.kv_tokens for head in line.heads], default=0)
        of_stream = gate.kv_tokens / streams if permits else None
        waiting = line.permits * usual
        yield _Meter("kv", gate.kv_limit, gate.kv_tokens, waiting, max(usual, least), of_stream)
    if gate.prefill_limit is not None:
        usual = engine.work_prompt.mean
        least = max([head.unread_tokens for head in line.heads], default=0)
        yield _Meter(
            "prefill", gate.prefill_limit, gate.prefill_tokens, line.queued_tokens, max(usual, least), None
        )


def _lingers_s(engine: Engine, now: float, *, prompts: bool) -> float:
    """Return how long what is out may last if this replica is never heard of again, or its prompts alone: nothing would end it sooner."""
    # Of lengths as uneven as exponential ones nine in ten are shorter than ln 10 times the mean. Where an engine tells what runs,
    # the store need not wait for that long.
    times = -log(1.0 - UPPER_SHARE)
    # What it starts until it is given up is not out yet.
    longest_s = max(_LEAST_LINGER_S, 0.0 if prompts else times * engine.expected_service_s())
    for permit in engine.permits.values():
        ends_at = permit.admitted_at + permit.expected_ttft_s if prompts else engine.expected_end(permit)
        longest_s = max(longest_s, permit.admitted_at + times * (ends_at - permit.admitted_at) - now)
    return longest_s


def _of_account(engine: Engine, line: _Line, now: float) -> Iterable[SharedNumber]:
    if engine.provider is None:
        return []
    usual = Sizes(round(engine.work_prompt.mean), round(engine.work_output.mean))
    numbers: list[SharedNumber] = []
    for sizes in [usual, *(head.sizes() for head in line.heads)]:
        for limit, bucket, needed in engine.provider.account.shared(sizes):
            names = (engine.settings.name, limit.kind.value)
            numbers += _of_bucket(("account_rate", "account_burst"), names, bucket, limit, needed, now)
    by_floor = sorted(numbers, key=lambda each: each.floor)  # of several the largest request has the largest
    return list({(each.kind, each.names): each for each in by_floor}.values())


def _of_bucket(
    kinds: tuple[str, str],
    names: tuple[str, ...],
    bucket: Bucket,
    limit: QuotaLimit,
    needed: float,
    now: float,
    missing: float = 0.0,
) -> list[SharedNumber]:
    """Return what it wants of a bucket's rate and burst.

    Of the rate it wants the more, the emptier its bucket: at the share with which the level neither rises nor falls, it
    has what it takes. First comes what it is `missing` for those that were told: it is to be there before they are, and
    clients may be early by `TOLERANCE_S`. A rate is never 0, for then the bucket would be shut and lose what is saved
    up. Bursts are divided evenly, but for what a request needs at once: moved with demand, what is saved up in them
    would be lost.
    """
    rate_per_s, room = limit.rate_per_s, bucket.burst - bucket.level(now)
    empty = min(1.0, max(0.0, room / bucket.burst))
    least = rate_per_s * bucket.burst / bucket.whole_burst / PARTS
    floor = min(rate_per_s, max(least, min(missing, room) / TOLERANCE_S))
    return [
        SharedNumber(kinds[0], names, rate_per_s, 0.0, rate_per_s * empty, floor),
        SharedNumber(kinds[1], names, limit.burst, 0.0, limit.burst, min(limit.burst, needed)),
    ]
