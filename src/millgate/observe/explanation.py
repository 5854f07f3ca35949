"""Decisions retold in sentences, each with the numbers that made it, for operators who ask why."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from millgate.core.decisions import Admit, Cancel, Candidate, Classed, Decision, Ended, Leg, Queue, Yield
from millgate.core.events import Arrived
from millgate.core.words import UNREAD, ClassedBy, Counted, Outcome, Reason, Stage
from millgate.observe.refusals import OVERLOAD_REASONS
from millgate.observe.ring import Recorded, Step

_MILLISECONDS_BELOW_S: Final = 0.1
_SHORTEST_S: Final = 0.001
"""What rounds to no millisecond is no time between two attempts."""
_IN_THE_HEAD: Final = frozenset(("attempt", "tenant", "lane", "body_bytes"))
"""What of an arrival is known before its body."""


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One step: `after_s` since the first that is kept, its kind, its sentence, and the numbers in it by name."""

    after_s: float
    kind: str
    words: str
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExplainedAttempt:
    """One attempt in order; `whole` False says that its beginning is no longer kept, `upstream_ids` what engines called it, `trace` its trace's id."""

    attempt: int
    at: float
    whole: bool
    steps: tuple[ExplainedStep, ...]
    upstream_ids: tuple[str, ...]
    trace: str


def retell(recorded: Recorded, epoch_offset_s: float = 0.0) -> ExplainedAttempt:
    """Return the attempt in sentences; `at` is its first step's core time plus the offset."""
    began = recorded.steps[0].at
    steps = [told for step in recorded.steps for told in _told(step, began)]
    if recorded.cause and steps[-1].numbers.get("outcome") == Outcome.ENGINE_FAILED:
        steps[-1] = replace(steps[-1], words=f"{steps[-1].words}; {recorded.cause}")
    return ExplainedAttempt(
        recorded.attempt,
        began + epoch_offset_s,
        recorded.whole,
        tuple(steps),
        recorded.upstream_ids,
        recorded.trace,
    )


def seconds(value: float) -> str:
    """Return a time with a tenth of a second, or in milliseconds below that."""
    return f"{value:.1f} s" if abs(value) >= _MILLISECONDS_BELOW_S else f"{1000.0 * value:.0f} ms"


def _told(step: Step, began: float) -> Iterator[ExplainedStep]:
    if step.arrival is not None:
        # What was refused by its head: what is in its body is not known.
        yields = [made.reason for made in step.decisions if isinstance(made, Yield)]
        is_unread = Reason.OVERLOADED_GATE in yields
        arrived = _unread(step.arrival) if is_unread else (_arrived(step.arrival), _plain(step.arrival))
        yield ExplainedStep(step.at - began, "arrived", *arrived)
    for decision in step.decisions:
        kind = type(decision).__name__.lower()
        words = sentence(decision, step.at, was_queued=step.arrival is None)
        yield ExplainedStep(step.at - began, kind, words, _plain(decision))


def sentence(decision: Decision, at: float, *, was_queued: bool = False) -> str:
    """Return what was decided at core time `at`, in one sentence without a full stop.

    `was_queued` says that it was decided later than the arrival: what a refusal carries then is the wait.
    """
    if isinstance(decision, Admit):
        return f"admitted {_waited(decision)} to {_legs(decision.legs)}: {_expected(decision, at)}"
    if isinstance(decision, Ended):
        return _ended(decision)
    said = numbers(decision, at, was_queued=was_queued)
    if isinstance(decision, Yield):
        return f"refused {decision.reason.value}: {said}"
    return f"queued {said}" if isinstance(decision, Queue) else f"cancelled {decision.reason.value}; {said}"


def numbers(decision: Decision, at: float, *, was_queued: bool = False) -> str:
    """Return the numbers of the same decision, for a reader that sees beside them what it was, and on which engine."""
    if isinstance(decision, Admit):
        read = " and ".join(f"{leg.kv_tokens:,} tokens reserved" for leg in decision.legs)
        return f"{_waited(decision)}, {read}; {_expected(decision, at)}"
    if isinstance(decision, Queue):
        wait = f"at place {decision.place}, expected wait {seconds(decision.expected_wait_s)}"
        wait += f"; {_SPACED}" if decision.counted is Counted.PACE else ""
        return wait + _in_class(decision.classed) + _placed(decision.candidates) + _waits_for(decision, at)
    if isinstance(decision, Yield):
        waited = was_queued and decision.reason is not Reason.TENANT_LIMIT  # whose numbers are streams
        said = f"{_reason(decision, was_queued=waited)}; {_hint(decision)}"
        arrived_at = at - decision.value if waited else at
        return said + _first_attempt(decision.first_seen, arrived_at) + _in_class(decision.classed)
    if isinstance(decision, Cancel):
        return f"told to come back in {seconds(decision.retry_after_s)}"
    cause = f"{_cause(decision)}; " if decision.cause else ""
    return cause + (_served(decision) if decision.engine else f"after {seconds(decision.total_s)} of waiting")


def _unread(arrival: Arrived) -> tuple[str, dict[str, Any]]:
    """Return what is known of a request by its head alone, in words and by name."""
    said = f"{arrival.body_bytes:,} bytes announced" if arrival.body_bytes else "no length announced"
    known = {name: value for name, value in _plain(arrival).items() if name in _IN_THE_HEAD}
    return f"arrived{_whose(arrival)}: {said}, not read", known


def _arrived(arrival: Arrived) -> str:
    is_text = arrival.prompt_bytes or not arrival.fixed_tokens
    size = f"{arrival.prompt_bytes:,} bytes" if is_text else f"{arrival.fixed_tokens:,} tokens"
    said = [f"{size} of prompt"]
    said.append(
        "no bound on the answer" if arrival.max_tokens is None else f"max_tokens {arrival.max_tokens:,}"
    )
    said.append("streaming" if arrival.stream else "not streaming")
    if arrival.time_allowed_s is not None:
        said.append(f"its client waits {seconds(arrival.time_allowed_s)}")
    if arrival.retry_count:
        said.append(f"labelled as retry {arrival.retry_count}")
    return f"arrived{_whose(arrival)}: {', '.join(said)}"


def _whose(arrival: Arrived) -> str:
    whose = f" of {arrival.tenant}" if arrival.tenant else ""
    return whose + (f" for lane {arrival.lane}" if arrival.lane else "")


def _waited(decision: Admit) -> str:
    if decision.waited_s <= 0.0:
        return "at once"
    window = f", {seconds(decision.window_s)} of them for company" if decision.window_s > 0.0 else ""
    return f"after {seconds(decision.waited_s)}{window}"


def _legs(legs: tuple[Leg, ...]) -> str:
    """Name the engine that answers, and the one that reads the prompt where that is another."""
    said = [
        f"{leg.engine} (reserved {leg.kv_tokens:,} tokens, {leg.prompt_tokens:,} of them to read)"
        for leg in legs
    ]
    return ", its prompt read by ".join(said)


def _expected(decision: Admit, at: float) -> str:
    told = f"; {_back(decision, at)}" if decision.due_at is not None else ""
    told += _first_attempt(decision.first_seen, at - decision.waited_s)
    would = f"; a protecting gate would have refused {decision.would.value}" if decision.would else ""
    told += "; for overflow: no other engine had room for it in time" if decision.beyond_others else ""
    told += _reshaped(decision) + _in_class(decision.classed) + _placed(decision.candidates)
    return (
        f"first token expected in {seconds(decision.expected_ttft_s)}, "
        f"the engine has {seconds(decision.first_event_by - at)} to begin{told}{would}"
    )


def placement_words(candidates: tuple[Candidate, ...]) -> str:
    """Return what engines hold of a prompt and what it would cost on each, in their order, without a full stop."""
    told = [
        f"{each.engine} holds {f'{each.cached_tokens:,}' if each.cached_tokens else 'none'} and costs {seconds(each.cost_s)}"
        for each in candidates
    ]
    return f"of {candidates[0].prompt_tokens:,} prompt tokens {', '.join(told)}"


def _placed(candidates: tuple[Candidate, ...]) -> str:
    return f"; {placement_words(candidates)}" if candidates else ""


def _waits_for(decision: Queue, at: float) -> str:
    if not decision.better_until:
        return ""
    waited_for, most_s = "another engine than those with room", decision.better_until - at
    best = min(decision.candidates, key=lambda each: each.cost_s, default=None)
    if best is not None and best is not decision.candidates[0]:
        waited_for = best.engine
    return f"; waits for {waited_for}, {seconds(most_s)} at most"


def _reshaped(decision: Admit) -> str:
    if decision.reshaped is None:
        return ""
    lane, most = decision.reshaped
    cut = f"; cut to {most:,} output tokens" if most is not None else ""
    return f"{cut}; in lane {lane} instead" if lane is not None else cut


def class_words(classed: Classed) -> str:
    """Return which lane a request that named none is in, and by which number, without a full stop."""
    return f"{classed.lane}: {_CLASSED[classed.by].format(*classed[2:])}"


def _in_class(classed: Classed | None) -> str:
    return "" if classed is None else f"; lane {class_words(classed)}"


_CLASSED: Final = {
    ClassedBy.PROMPT: "its prompt of {:,} tokens takes an idle engine {:.1f} s to read, and this lane takes those above {:.1f} s",
    ClassedBy.ANSWER: "not streamed, with a prompt of {:,} tokens it takes an idle engine {:.1f} s, and this lane takes those above {:.1f} s",
    ClassedBy.ONLY_READ: "its engine reads it and writes nothing",
    ClassedBy.AGENT: "a coding agent asks",
    ClassedBy.FIRST_ATTEMPT: "its first attempt was in it",
}


def _back(decision: Admit, at: float) -> str:
    assert decision.due_at is not None
    late_s = at - decision.waited_s - decision.due_at
    return f"it was back {seconds(abs(late_s))} {'after' if late_s >= 0.0 else 'before'} its hint"


def _first_attempt(first_seen: float, arrived_at: float) -> str:
    """Say how long before this attempt its request's first one came; 0 is not known."""
    before_s = arrived_at - first_seen if first_seen else 0.0
    return f"; its first attempt came {seconds(before_s)} before" if before_s >= _SHORTEST_S else ""


_TOO_LATE: Final = "an automatic retry would be too late as well"


def _hint(decision: Yield) -> str:
    if not decision.retry:
        return _TOO_LATE if decision.reason is Reason.TOO_LATE else "coming back would be useless"
    line = ", when its appointment is due" if decision.reason in OVERLOAD_REASONS else ""
    if decision.promised and decision.reason is Reason.TENANT_LIMIT:
        line = f", when streams have ended for {decision.promised:,.0f} that were told to come before it, and for it"
    elif decision.promised:
        line = ", when its quota has enough for them and for it"
    return f"told to come back in {seconds(decision.retry_after_s)}{line}"


def _reason(decision: Yield, *, was_queued: bool) -> str:
    """Return what was measured and the line that it crossed."""
    value, bound = decision.value, decision.bound
    if was_queued:
        waited = f"waited {seconds(value)}, deadline {seconds(bound)} after it arrived"
        return _AFTER_WAITING.get(decision.reason, "{}").format(waited)
    if decision.counted is Counted.ADAPTERS:
        return (
            "its adapter is in no slot of an engine, and other adapters use them all: its first token would come within "
            f"{seconds(value)}, where it may be {seconds(max(0.0, bound))}"
        )
    if decision.reason is Reason.TOO_LATE:
        spaced = f"{_SPACED}: " if decision.counted is Counted.PACE else ""
        return (
            f"{spaced}its first token would come within {seconds(value)} (nine times in ten), "
            f"which is later than its deadline in {seconds(bound)}"
        )
    if decision.counted is Counted.SESSIONS:
        return f"it would open a session, and every engine is full of live ones: none is over within {seconds(value)}"
    if decision.counted is Counted.WAIT:
        return f"a wait of {seconds(value)}, where it may be {seconds(max(0.0, bound))}"
    if decision.counted is Counted.STREAMS:
        return f"it needs {value:,.0f} streams, no engine ever has more than {bound:,.0f}"
    if decision.reason is Reason.OVERLOADED_GATE:
        return f"the gate itself is too busy, {seconds(value)} late"
    if decision.reason is Reason.QUOTA:
        short_of = decision.short_of
        return ("" if short_of is None else f"of {short_of.rule} ") + _QUOTA[decision.promised > 0.0].format(
            value, max(0.0, bound) // 1, decision.promised
        )
    template = _METERS.get(decision.counted) or _COUNTED.get(decision.reason)
    return template.format(value, bound) if template else _PLAIN[decision.reason]


_SPACED: Final = "the prompts of its lane are spaced out for others"
# Streams are free, and another meter is full.
_METERS: Final[Mapping[Counted | None, str]] = {
    Counted.MEMORY: "streams are free, but it needs {:,.0f} tokens of KV memory, and {:,.0f} are free",
    Counted.PROMPTS: "streams are free, but its {:,.0f} prompt tokens come after {:,.0f} that are still to be read",
    Counted.ACCOUNT: "streams are free, but its provider's account has room for it in {:,.1f} s",
}
# What value and bound count, by reason (core/decisions).
_COUNTED: Final = {
    Reason.SATURATED: "{:,.0f} of {:,.0f} streams are out",
    Reason.QUEUE_FULL: "the queue holds {:,.0f}, where {:,.0f} may wait (attempts, tokens or bytes)",
    Reason.TENANT_LIMIT: "{:,.0f} of its tenant's {:,.0f} streams are in",
    Reason.RETRY_BUDGET: "{:,.0f} retries were charged within 10 s, the budget is {:,.1f}",
    Reason.TOO_LARGE: "it needs {:,.0f} tokens, no more than {:,.0f} ever fit (engine, quota or account)",
}
_QUOTA: Final = (
    "it needs {:,.0f}, {:,.0f} are left",
    "it needs {:,.0f}, {:,.0f} are left, {:,.0f} are promised to clients that were told to come before it",
)
_AFTER_WAITING: Final = {
    Reason.TOO_LATE: "{}, and the first token would come later",
    Reason.SATURATED: "{}, which is longer than it may wait",
    Reason.NO_ENGINE: "{}; no engine that serves this model is up",
    Reason.TOO_LARGE: "{}; no engine can take so long a prompt any more",
    Reason.DRAINING: "{}; the gate is leaving",
}
_PLAIN: Final = {
    Reason.EXPIRED: "its deadline had passed",
    Reason.DISPLACED: "a request with more right to the place came",
    Reason.NO_ENGINE: "no engine that serves this model is up",
    Reason.NO_LEASE: "the store of the cluster grants no lease, and without one this replica is closed",
    Reason.DRAINING: "the gate is leaving",
}


def _ended(decision: Ended) -> str:
    cause = f" ({_cause(decision)})" if decision.cause else ""
    if decision.engine is None:
        return f"ended {decision.outcome.value}{cause} after {seconds(decision.total_s)} of waiting"
    return f"ended {decision.outcome.value}{cause} on {decision.engine}: {_served(decision)}"


def _served(decision: Ended) -> str:
    ttft = "" if decision.ttft_s is None else f"first token after {seconds(decision.ttft_s)}, "
    if decision.cause in UNREAD and not decision.output_tokens:
        return f"over after {seconds(decision.total_s)}, nothing of it read"
    cached = f" ({decision.cached_tokens:,} of them from its cache)" if decision.cached_tokens else ""
    tokens = f"{decision.prompt_tokens:,} tokens read{cached} and {decision.output_tokens:,} written"
    return f"{ttft}over after {seconds(decision.total_s)}, {tokens}"


def _cause(decision: Ended) -> str:
    if decision.outcome is Outcome.CLIENT_GONE:
        where = {
            Stage.QUEUED: "it waited",
            Stage.PREFILL: "no token of it had come",
            Stage.DECODE: "it was answered",
        }
        return f"while {where.get(Stage(str(decision.cause)), 'it ran')}"
    return str(decision.cause)


def _plain(record: Decision | Arrived) -> dict[str, Any]:
    """Return the fields of a record that say something; legs become mappings."""
    found = {name: value for name, value in record._asdict().items() if value is not None and value != ""}
    if isinstance(record, Admit | Queue | Yield) and record.classed is not None:
        found["classed"] = record.classed._asdict()
    if isinstance(record, Admit | Queue):
        found["candidates"] = [each._asdict() for each in record.candidates]
    if isinstance(record, Admit):
        found["legs"] = [leg._asdict() for leg in record.legs]
    return found
