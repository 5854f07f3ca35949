"""The governor that a configuration asks for decides by that configuration."""

from millgate.config.schema import Config
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Arrived
from millgate.wiring.governor import build_governor
from millgate.wiring.settings import build_settings


def kinds(lane: dict[str, object], arrivals: int) -> list[type]:
    """Return what each of several arrivals at once is told by a gate with two permits and this lane."""
    engine = {"url": "http://127.0.0.1:8000", "max_inflight": 2}
    config = Config.model_validate({"engines": [engine], "lanes": [{"name": "interactive", **lane}]})
    governor = build_governor(build_settings(config).settings, now=5.0)
    return [
        type(governor.handle(Arrived(number, prompt_bytes=100), 5.0)[0]) for number in range(1, arrivals + 1)
    ]


def test_a_cap_of_two_admits_two_and_holds_the_third() -> None:
    assert kinds({}, 3) == [Admit, Admit, Queue]


def test_a_queue_of_none_yields_the_third() -> None:
    assert kinds({"max_queue": 0}, 3) == [Admit, Admit, Yield]


def test_a_queue_of_one_holds_one_and_yields_the_next() -> None:
    assert kinds({"max_queue": 1, "order": "deadline"}, 4) == [Admit, Admit, Queue, Yield]
