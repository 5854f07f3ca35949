"""Named dice: equal for equal names and seeds, different otherwise."""

from millgate.sim.laws import exponential
from millgate.sim.randomness import Streams


def take(streams: Streams, purpose: str, count: int = 2000, number: int = 0) -> list[float]:
    draws = streams.draws(purpose, exponential(1.0).sample, number)
    return [draws.next() for _ in range(count)]


def test_equal_seeds_and_purposes_give_equal_numbers() -> None:
    assert take(Streams(1), "gaps") == take(Streams(1), "gaps")


def test_seeds_purposes_and_numbers_are_independent_streams() -> None:
    streams = [take(Streams(1), "gaps"), take(Streams(2), "gaps"), take(Streams(1), "lengths")]
    streams.append(take(Streams(1), "gaps", number=1))

    assert len({tuple(stream) for stream in streams}) == 4


def test_a_stream_does_not_depend_on_what_else_is_drawn() -> None:
    streams = Streams(3)
    other = streams.draws("other", exponential(1.0).sample)
    draws = streams.draws("gaps", exponential(1.0).sample)
    mixed = [(draws.next(), other.next())[0] for _ in range(2000)]

    assert mixed == take(Streams(3), "gaps")
