"""What the core is told of a request, from what its head and its body say."""

from millgate.core.events import Arrived
from millgate.core.fast_records import make_arrived
from millgate.dialects.clip import may_clip
from millgate.dialects.contract import RequestFacts
from millgate.dialects.handoff import may_bootstrap, may_hand_over
from millgate.dialects.ticket import Ticket
from millgate.runtime.callers import session_of_model
from millgate.runtime.long_bodies import LONG_BYTES
from millgate.servers.http.contract import AskedAttempt, DoorSettings
from millgate.servers.http.kept_answers import KeptAnswers
from millgate.servers.requests.reading import HeadReading
from millgate.servers.requests.tickets import TicketDesk
from millgate.servers.requests.told_clients import ToldClient


def arrival_of(attempt: AskedAttempt, reading: HeadReading, facts: RequestFacts, size_bytes: int) -> Arrived:
    """Return the arrival of a request whose body has `size_bytes`."""
    tenant, lane = reading.caller
    return make_arrived(
        attempt.number,
        tenant=tenant,
        lane=lane,
        model=facts.model,
        prompt_bytes=size_bytes if facts.text_bytes is None else facts.text_bytes,
        body_bytes=size_bytes,
        max_tokens=facts.max_tokens,
        answers=facts.answers,
        stream=facts.stream,
        time_allowed_s=reading.allowed_s,
        retry_count=reading.retries,
        min_tokens=facts.min_tokens,
        fixed_tokens=facts.fixed_tokens,
        prompt_shape=facts.shape,
        fingerprint=attempt.fingerprint,
        marks=None if reading.conversation is None else attempt.marks,
        session=session_of_model(reading.session, facts.model) if reading.session is not None else None,
        of_agent=reading.of_agent,
    )


def with_ticket(arrival: Arrived, desk: TicketDesk, value: bytes) -> Arrived:
    """Give an arrival the age that its ticket proves; what is no good ticket changes nothing."""
    return as_told(arrival, desk.redeem(value, arrival.tenant))


def as_told(arrival: Arrived, ticket: Ticket | None) -> Arrived:
    """Give an arrival the age of one that was told what this ticket says, if there is one."""
    if ticket is None:
        return arrival
    return arrival._replace(first_seen=ticket.first_seen, due_at=ticket.due_at, hint_s=ticket.hint_s)


def as_told_elsewhere(arrival: Arrived, client: ToldClient | None) -> Arrived:
    """Give an arrival the age of this client of another worker or replica, if there is one; of one that was promised no place it is agreed that it comes."""
    if client is None:
        return arrival
    if not client.is_promised:
        return arrival._replace(caps_sleep=True)
    return as_told(arrival, Ticket(client.first_seen, client.told_at + client.hint_s, client.hint_s))


def back_to_keeper(arrival: Arrived, kept_answers: KeptAnswers, answer_id: str) -> Arrived:
    """Send what builds on a kept answer to the engine that keeps it, where that is known."""
    keeper = kept_answers.find(answer_id)
    return arrival if keeper is None else arrival._replace(engine=keeper.engine)


def with_licences(
    arrival: Arrived, door: DoorSettings, path: bytes, facts: RequestFacts, body: bytes
) -> Arrived:
    """Say whether the answer to this body may be cut short, and whether one engine may read its prompt and another one answer it."""
    is_short = len(body) <= LONG_BYTES  # nothing is searched for in longer ones
    return arrival._replace(
        may_clip=is_short and door.clips and may_clip(body),
        hands_over=is_short and door.hands_over and may_hand_over(path, facts, body),
        bootstraps=door.hands_over and may_bootstrap(path, facts),
    )
