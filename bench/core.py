"""`python -m bench.core`: the CPU of the decision alone, for an admitted request and for a refusal; no socket, no gate.

Each round decides about some thousands of requests of one governor: three events for one that is admitted, one event for one
that is refused before a full engine. Beside them one record of an arrival, by the quick constructor and by the plain one. The least of all rounds is what the code costs where nothing else runs beside it.
"""

import argparse
import json
import time
from collections.abc import Callable

from millgate.core.events import Arrived, Finished, Released
from millgate.core.fast_records import make_arrived
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.wiring.governor import build_governor

REQUESTS = 4_000
"""Of one round: some 40 ms."""
_GAP_S = 0.0005
_FULL_STREAMS = 4


def _governor(streams: int, max_queue: int | None) -> Governor:
    settings = Settings((LaneSettings("lane", max_queue=max_queue),), (EngineSettings("engine", streams),))
    return build_governor(settings, 0.0)


def _arrival(number: int) -> Arrived:
    return Arrived(number, prompt_bytes=300, body_bytes=300, max_tokens=64, fingerprint=lambda: number)


def admitted_us() -> float:
    """Return microseconds of CPU of one request from its arrival over its answer to the end of its permit."""
    gate, now = _governor(64, None), 0.0
    began = time.process_time()
    for number in range(REQUESTS):
        now += _GAP_S
        gate.handle(_arrival(number), now)
        gate.handle(Finished(number, 80, 30), now)
        gate.handle(Released(number), now)
    return (time.process_time() - began) / REQUESTS * 1e6


def refused_us() -> float:
    """Return microseconds of CPU of one refusal, each of which leaves an appointment."""
    gate, now = _governor(_FULL_STREAMS, 0), 0.0
    for number in range(_FULL_STREAMS):
        gate.handle(_arrival(number), now)
    began = time.process_time()
    for number in range(_FULL_STREAMS, _FULL_STREAMS + REQUESTS):
        now += _GAP_S
        gate.handle(_arrival(number), now)
    return (time.process_time() - began) / REQUESTS * 1e6


def quick_record_us() -> float:
    """Return microseconds of CPU of one arrival's record by the quick constructor."""
    return _record_us(make_arrived)


def plain_record_us() -> float:
    """Return the same by the plain one."""
    return _record_us(Arrived)


def _record_us(make: Callable[..., Arrived]) -> float:
    began = time.process_time()
    for number in range(REQUESTS):
        make(
            number,
            tenant="t",
            lane=None,
            model="m",
            prompt_bytes=300,
            body_bytes=300,
            max_tokens=64,
            answers=1,
            stream=True,
            time_allowed_s=None,
            retry_count=None,
            min_tokens=0,
            fixed_tokens=0,
            prompt_shape=None,
            fingerprint=int,
            marks=None,
            session=None,
            of_agent=False,
        )
    return (time.process_time() - began) / REQUESTS * 1e6


def _least(measured_us: Callable[[], float], rounds: int) -> float:
    return round(min(measured_us() for _ in range(rounds)), 2)


def main() -> None:
    """Print all figures as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.core", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=25, help="rounds of each, of which the least counts (25)"
    )
    rounds = parser.parse_args().rounds
    figures = {
        each.__name__: _least(each, rounds)
        for each in (admitted_us, refused_us, quick_record_us, plain_record_us)
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
