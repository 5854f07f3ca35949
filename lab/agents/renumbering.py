"""Recorded sessions again, as work of their own."""

from millgate.sim.traces.sources import MOST_UNITS, AgentSession


def renumbered(session: AgentSession, number: int) -> AgentSession:
    """Return the same work under another number, with nothing in common."""
    shift = (number - session.number) * MOST_UNITS
    turns = []
    for turn in session.turns:
        ids = tuple([unit + shift for unit in turn.job.prefix_ids])
        turns.append(turn._replace(job=turn.job._replace(prefix_ids=ids, session=number)))
    return AgentSession(number, tuple(turns))
