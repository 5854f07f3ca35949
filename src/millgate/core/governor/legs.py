"""A request of two legs: one engine reads its prompt, another one writes its answer.

Both legs begin with the admission, so that no prompt is read that no engine could answer. The reading engine's stream
and its share of the prefill meter end with its answer. Its memory stays taken until the other engine's first token, or
until the lease ends. Whatever goes wrong with the first leg, the second engine can read the prompt itself, as it has
the memory. No request is read more than twice.

Legs that are paired (SGLang) run at the same time, and neither engine can do anything alone: the reading one is done
when the other one has the prompt, and if it fails the attempt fails.
"""

from millgate.core.decisions import Leg
from millgate.core.events import FirstLegNews, HandoffFailed, Prefilled
from millgate.core.governor.knowledge import Engines
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import Permit
from millgate.core.state.leg import PrefillLeg, reads_after_all


def begin(engines: Engines, attempt: Attempt, permit: Permit, leg: Leg, now: float) -> None:
    """The prompt of an attempt that has this permit elsewhere is read on this leg first."""
    reader, request = engines.by_name[leg.engine], attempt.request
    cached_tokens = engines.prefixes.held_by(reader.number, request.marks, request.prompt_tokens)
    unread_tokens = max(1, request.prompt_tokens - cached_tokens)
    ahead, ttft_s = reader.unread_tokens(now), reader.expected_ttft_s(unread_tokens, now)
    own = Permit(request.attempt, attempt.serial, leg.streams, leg.streams, now, ahead, ttft_s, leg.streams)
    reader.starts(own, leg, unread_tokens, 1, now, only_read=False)
    reader.given_prompt(request.lane.settings.name, unread_tokens, ttft_s, now)
    if request.marks:
        engines.prefixes.placed(reader.number, request.marks, request.prompt_tokens)
    permit.is_away()
    attempt.is_read_by(PrefillLeg(reader, own, unread_tokens, cached_tokens))
    engines.legs.begins()
    engines.legs.begins_on(reader)


def heard(engines: Engines, attempt: Attempt, event: FirstLegNews, now: float) -> None:
    """Take what has become of a first leg; the caller dispatches."""
    if (leg := attempt.reading) is None:
        return
    if isinstance(event, HandoffFailed):
        _failed(engines, attempt, now)
    elif leg.is_reading:
        _prefilled(engines, attempt, leg, event, now)


def _prefilled(engines: Engines, attempt: Attempt, leg: PrefillLeg, event: Prefilled, now: float) -> None:
    """The prompt is read, and the second engine gets the request now."""
    request = attempt.request
    leg.has_read(now)
    if attempt.permit is not None:
        attempt.permit.is_sent(now)
    if leg.is_paired:
        _was_fetched(engines, attempt, leg, now, is_seen=False)
    else:
        engines.legs.ends_at(leg, now + leg.reader.settings.kv_lease_s)
    if request.marks and event.prompt_tokens:
        found = engines.prefixes.answered(
            leg.reader.number, request.marks, leg.cached_tokens, event.prompt_tokens, 0, event.cached_tokens
        )
        if found is not None:
            engines.working_sets.found(found)


def _failed(engines: Engines, attempt: Attempt, now: float) -> None:
    """The second engine reads the prompt itself, from now on; one that cannot fails too, as the next event says."""
    permit, engine, leg = attempt.permit, attempt.engine, attempt.reading
    assert permit is not None
    assert engine is not None
    part_with(engines, attempt, now)
    engines.legs.was_lost()
    if leg is not None and leg.is_paired:
        attempt.loses_reader(leg.reader)
        return
    attempt.is_read_by(None)
    reads_after_all(engine, permit, attempt.unread_tokens, now)
    engines.note(permit, engine)


def fetched(engines: Engines, attempt: Attempt, leg: PrefillLeg, now: float, *, is_seen: bool) -> None:
    """The second engine has the prompt: its first token `is_seen`, or its whole answer has come."""
    if leg.is_paired and leg.is_reading:  # its own end is still on its way here
        leg.has_read(now)
        if attempt.permit is not None:
            attempt.permit.is_sent(now)
    if leg.kept_tokens:
        _was_fetched(engines, attempt, leg, now, is_seen=is_seen and not leg.is_paired)
    part_with(engines, attempt, now)
    attempt.was_read()


def _was_fetched(engines: Engines, attempt: Attempt, leg: PrefillLeg, now: float, *, is_seen: bool) -> None:
    """Give its memory back; how long the transfer took shows only where that is what happened since it was read."""
    assert attempt.engine is not None
    engines.legs.was_fetched(leg, attempt.engine, attempt.request.prompt_tokens, now, is_seen=is_seen)


def part_with(engines: Engines, attempt: Attempt, now: float, *, tries_again: bool = False) -> None:
    """The request goes on without its first leg, or not at all: a prompt that is still being read ends after the engine's abort lag."""
    leg = attempt.reading
    if leg is None or not leg.is_reading:
        return
    if tries_again:  # the other engine was never reached, and without it this one does not begin
        leg.let_go(now)
    else:
        engines.legs.ends_at(leg, now + leg.reader.hangups.lag.mean)
