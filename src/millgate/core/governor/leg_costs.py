"""Should one engine read the prompt and another one write the answer? The same cost that chooses engines says so.

Alone, an engine reads the prompt between the steps of all streams that run there, and each of them waits for it. Apart,
the prompt waits for those before it on the engine that reads, and then for its transfer; the other engine's streams
wait for one step more.
"""

from math import inf
from typing import NamedTuple

from millgate.core.routing.least_work import marginal_cost
from millgate.core.routing.prefix_index import BLOCK_TOKENS, Held, PrefixIndex
from millgate.core.state.attempt import Request
from millgate.core.state.engine import Engine
from millgate.core.state.leg import Legs, distance_of, may_be_two
from millgate.core.words import KvTransfer, Role

FirstLeg = tuple[float, Engine]
"""What it costs in seconds that this engine reads the prompt."""


class Apart(NamedTuple):
    """Two engines, the one that reads and the one that answers: the cost in seconds, and the time to the first token."""

    reader: Engine
    engine: Engine
    cost_s: float
    ttft_s: float


def apart(
    prefixes: PrefixIndex, legs: Legs, request: Request, engines: tuple[Engine, ...], held: Held, now: float
) -> Apart | None:
    """Return the cheapest two of the engines that have room for one leg each; None where there are none, or nothing to hand over."""
    # Of a prompt below one block vLLM hands nothing over, and some of its connectors hang on it (LMCache#2459).
    is_fetched = request.arrival.hands_over and request.prompt_tokens >= BLOCK_TOKENS
    deciding = [
        each
        for each in engines
        if each.settings.role is Role.DECODE
        and (request.arrival.bootstraps if each.needs_reader else is_fetched)
        and has_memory(each, request)
    ]
    reading = [each for each in request.route.readers_up if _has_room(each, prefixes, request)]
    if not deciding or not reading:
        return None
    hosts = {each.settings.labels.host for each in deciding}
    first_legs = _first_legs(prefixes, request, reading, hosts)
    cost_s, reader, engine = inf, reading[0], None
    for each in deciding:
        write_s = _writing_cost(each, request)
        for leg in first_legs:
            if not may_be_two(leg[1], each):
                continue
            whole_s = leg[0] + (write_s + _transfer_s(legs, leg[1], each, request, held))
            if engine is None or whole_s < cost_s:
                cost_s, reader, engine = whole_s, leg[1], each
    if engine is None:
        return None
    ttft_s = (
        reader.expected_ttft_s(_unread(reader, prefixes, request), now)
        + _transfer_s(legs, reader, engine, request, held)
        + engine.service.tpot_s(engine.gate.streams + 1)
    )
    return Apart(reader, engine, cost_s, ttft_s)


def _first_legs(
    prefixes: PrefixIndex, request: Request, readers: list[Engine], hosts: set[str]
) -> list[FirstLeg]:
    """Return the cheapest reader of each place, the first named among equals; a host counts where an engine that writes may be on it."""
    found: dict[tuple[KvTransfer, str, str, str, str], FirstLeg] = {}
    for reader in readers:
        host, rack, zone, required = reader.settings.labels
        place = (reader.settings.kv_transfer, host if host in hosts else "", rack, zone, required)
        read_s = _reading_cost(reader, _unread(reader, prefixes, request))
        if place not in found or read_s < found[place][0]:
            found[place] = read_s, reader
    return list(found.values())


def pauses_cost(engine: Engine, request: Request, unread_tokens: int) -> float:
    """Return what it costs beyond seconds that streams wait for a prompt that is read between their steps.

    A second of a newcomer's wait is a part of its lane's TTFT. A second of a running stream's is a larger part of what
    its TPOT leaves: the objective less the pace, over its answer. Streams are taken to be of the newcomer's lane, and
    to be as long.
    """
    lane, service, streams = request.lane.settings, engine.service, engine.gate.streams
    if lane.tpot_slo_s is None:
        return 0.0
    left_s = request.output_tokens * (lane.tpot_slo_s - service.tpot_s(streams + 1))
    if left_s <= 0.0:
        return inf if streams else 0.0
    return max(0.0, lane.ttft_slo_s / left_s - 1.0) * streams * service.reading_s(unread_tokens)


def late_cost(request: Request, ttft_s: float, now: float) -> float:
    """Return what it costs beyond seconds that the first token comes too late: the whole time that its lane has for it."""
    return request.lane.settings.ttft_slo_s if now + ttft_s > request.deadline else 0.0


def _unread(reader: Engine, prefixes: PrefixIndex, request: Request) -> int:
    """Return how many tokens of this prompt the engine would have to read, one at least."""
    return max(
        1, request.prompt_tokens - prefixes.held_by(reader.number, request.marks, request.prompt_tokens)
    )


def has_memory(engine: Engine, request: Request) -> bool:
    """Return whether this engine has streams and memory for it, whatever it reads."""
    gate, streams = engine.gate, engine.gate.streams_of(request.arrival)
    if engine.is_tried or not gate.fits(request.prompt_tokens, streams):
        return False
    return gate.has_room(request.kv_tokens, 0, streams)


def _has_room(reader: Engine, prefixes: PrefixIndex, request: Request) -> bool:
    gate, tokens = reader.gate, request.prompt_tokens
    streams = gate.streams_of(request.arrival)
    if reader.is_tried or not gate.fits(tokens, streams):
        return False
    return gate.has_room(tokens, _unread(reader, prefixes, request), streams)


def _reading_cost(reader: Engine, unread_tokens: int) -> float:
    """Return the cost of the first leg. Live sessions stay where answers are written, so none counts there; of the second leg one token is read."""
    service = reader.service
    unread_s = service.reading_s(reader.gate.unread_tokens)
    return marginal_cost(0, unread_s, service.reading_s(unread_tokens), 0.0, 0.0, 0, 0.0)


def _writing_cost(engine: Engine, request: Request) -> float:
    gate, service = engine.gate, engine.service
    streams = gate.streams
    tpot_s = service.tpot_s(streams + 1)
    slower_s = tpot_s - service.tpot_s(streams)
    unread_s = service.reading_s(gate.unread_tokens)
    return marginal_cost(
        streams, unread_s, service.reading_s(1), tpot_s, slower_s, request.output_tokens, 0.0
    )


def _transfer_s(legs: Legs, reader: Engine, engine: Engine, request: Request, held: Held) -> float:
    """Return how long the transfer of what this engine does not hold of the prompt takes."""
    tokens = max(1, request.prompt_tokens - held.get(engine.number, 0))
    return legs.expected_s(distance_of(reader.settings.labels, engine.settings.labels), tokens)
