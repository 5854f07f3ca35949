"""How many streams is a request? An engine runs sequences: `n` answers of each prompt, each text of a list that it reads."""

from millgate.core.events import Arrived
from millgate.core.limits.gate import EngineGate


def is_only_read(arrival: Arrived) -> bool:
    """Return whether the engine reads this and writes nothing: its answer is there once its prompt has been read."""
    return arrival.max_tokens == 0


def streams_of(gate: EngineGate, arrival: Arrived) -> int:
    """Return how many streams this request takes of that gate: one for each sequence that the engine makes of it.

    A list that is only read (embeddings, scores) and is longer than the cap takes all of them and runs alone: its engine
    works it off in rounds, and nothing else waits in there with it.
    """
    streams, most = arrival.answers, gate.most_streams
    if streams > 1 and most is not None and is_only_read(arrival):
        return min(streams, most)
    return streams
