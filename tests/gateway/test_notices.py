"""Notices: one line of a kind a minute, with how many there were."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.snapshot import AccountReading, EngineSnapshot, Snapshot
from millgate.core.words import FailureKind
from millgate.gateway.notices import (
    LOOK_S,
    MOST_GIVEN_UP,
    MOST_KINDS,
    MOST_TURNS,
    QUIET_S,
    UNSEEN_LOOKS,
    EngineNotices,
    Notices,
    StateNotices,
)
from millgate.gateway.tls import Certificate
from millgate.observe.logs import ProcessLog
from millgate.runtime.health import EngineStanding, Stance
from millgate.servers.http.whole_bound import GivenUp
from millgate.wiring.governor import build_governor


class Written(ProcessLog):
    """A log that keeps its lines, and a clock that stands where it is put."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.now = 0.0
        self.notices = Notices(self, lambda: self.now)

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    info = warning


def test_the_first_is_told_at_once_and_a_flood_is_one_line_a_minute() -> None:
    log = Written()
    for second in range(3 * int(QUIET_S)):
        log.now = float(second)
        for _ in range(10):
            log.notices.bad_request("invalid_request")
    told = [fields["count"] for _event, fields in log.lines]
    assert told == [1, 600, 600]
    assert all(event == "bad requests" for event, _fields in log.lines)


def test_kinds_do_not_hide_each_other() -> None:
    log = Written()
    log.notices.bad_request("invalid_request")
    log.notices.bad_request("request_timeout")
    log.notices.unusable_usage("gpu-0")
    log.notices.unusable_usage("gpu-1")
    assert [list(fields.values()) for _event, fields in log.lines] == [
        ["invalid_request", 1],
        ["request_timeout", 1],
        ["gpu-0", 1],
        ["gpu-1", 1],
    ]


def test_the_kinds_that_are_remembered_are_bounded() -> None:
    log = Written()
    for engine in range(MOST_KINDS + 1):
        log.notices.unusable_usage(f"engine-{engine}")
    log.notices.unusable_usage("engine-1")
    assert len(log.lines) == MOST_KINDS + 1, "still known"
    log.notices.unusable_usage("engine-0")
    assert len(log.lines) == MOST_KINDS + 2, "forgotten for the newest"


def test_a_gate_that_is_too_slow_itself_says_so_once_a_minute() -> None:
    log = Written()
    for _ in range(3):
        log.notices.shed()
    assert log.lines == [("requests refused", {"reason": "overloaded_gate", "count": 1})]


def test_an_engine_that_fails_requests_and_stays_is_a_line_a_minute() -> None:
    log = Written()
    for number in range(3, 31):
        log.notices.failing(EngineStanding("gpu-0", Stance.UP, 0.0, "", f"{number} in a row"))
    log.now = QUIET_S
    log.notices.failing(EngineStanding("gpu-0", Stance.UP, 0.0, "", "31 in a row"))
    assert log.lines == [
        ("engine fails requests", {"engine": "gpu-0", "why": "3 in a row", "count": 1}),
        ("engine fails requests", {"engine": "gpu-0", "why": "31 in a row", "count": 28}),
    ]


def test_a_key_of_the_gate_that_is_refused_is_a_line_a_minute_that_says_why() -> None:
    log = Written()
    for _ in range(3):
        log.notices.refused("hosted", FailureKind.STATUS)
    log.notices.refused("other", FailureKind.NO_CREDIT)
    assert log.lines == [
        (
            "engine refuses the gate's key",
            {
                "engine": "hosted",
                "why": "it answers 401, 402 or 403 to the key of api_key_env, or to none where that is not set",
                "count": 1,
            },
        ),
        ("engine refuses the gate's key", {"engine": "other", "why": "no credit is left", "count": 1}),
    ]


def test_clients_whose_keys_an_engine_refuses_are_a_line_a_minute() -> None:
    log = Written()
    for _ in range(3):
        log.notices.client_refused("hosted")
    log.now = QUIET_S
    log.notices.client_refused("hosted")
    assert log.lines == [
        ("engine refuses clients' keys", {"engine": "hosted", "count": 1}),
        ("engine refuses clients' keys", {"engine": "hosted", "count": 3}),
    ]


def test_a_name_whose_addresses_of_before_are_used_is_a_line_and_one_when_it_is_found_again() -> None:
    log = Written()

    def looks(now: float, why: str) -> None:
        log.now = now
        log.notices.looked_up("gpu.test", why)

    looks(0.0, "Temporary failure in name resolution")
    assert not log.lines, "there are no addresses of before: its engine is down, and that is a line"
    for second in range(10):
        looks(10.0 + second, "")
    for second in range(int(2 * QUIET_S)):
        looks(100.0 + second, "Temporary failure in name resolution" if second % 2 else "")
    looks(100.0 + 2 * QUIET_S, "")
    lost = ("name not found, the addresses of before are used", "Temporary failure in name resolution")
    assert [(event, fields.get("why", "")) for event, fields in log.lines] == [
        lost,
        ("name found again", ""),
        lost,
    ]
    assert {fields["name"] for _event, fields in log.lines} == {"gpu.test"}


def test_requests_that_an_engine_fails_are_a_line_a_minute_of_each_engine_and_say_how() -> None:
    log = Written()
    for kind in (FailureKind.TIMEOUT, FailureKind.PROTOCOL, FailureKind.STATUS):
        for _ in range(3):
            log.notices.failed("gpu-0", kind)
    log.notices.failed("gpu-1", FailureKind.TIMEOUT)
    for kind in (FailureKind.CONNECT, FailureKind.REFUSED, FailureKind.NO_CREDIT):
        log.notices.failed("gpu-2", kind)  # lines of their own tell these
    assert log.lines == [
        ("engine timeouts", {"engine": "gpu-0", "count": 1}),
        ("engine failures", {"engine": "gpu-0", "kind": "protocol", "count": 1}),
        ("engine timeouts", {"engine": "gpu-1", "count": 1}),
    ]


def test_answers_that_are_given_up_are_a_line_each_within_a_bound() -> None:
    log = Written()
    given_up = GivenUp("seen-by-the-client", "gpu-0", "limits.longest_answer", 75.0, "too late")
    for _ in range(MOST_GIVEN_UP + 5):
        log.notices.given_up(given_up, 60.0)
    assert log.lines == [("answer given up", given_up._asdict())] * MOST_GIVEN_UP
    log.now = QUIET_S
    log.notices.given_up(given_up, 60.0)
    assert log.lines[-1] == ("answer given up", {**given_up._asdict(), "unsaid": 5})


def test_an_answer_that_was_silent_is_told_with_the_seconds_that_it_may_be() -> None:
    log = Written()
    log.notices.given_up(GivenUp("id", "gpu-0", "limits.upstream_idle", None, "silent for 5 s"), 60.0)
    assert [line["bound_s"] for _, line in log.lines] == [60.0]


class Turning(Written):
    """An engine whose every turn is told at the time at which the clock stands."""

    def __init__(self) -> None:
        super().__init__()
        self.put_off: list[tuple[float, Callable[[], None]]] = []
        self.engines = EngineNotices(
            self, lambda: self.now, lambda wait_s, call: self.put_off.append((wait_s, call))
        )

    def turn(self, stance: Stance, now: float, engine: str = "gpu-0") -> None:
        self.now = now
        why = "its health page does not answer: connect" if stance is Stance.DOWN else ""
        self.engines.turned(EngineStanding(engine, stance, now, why))


def test_an_engine_that_goes_down_and_comes_up_is_a_line_each() -> None:
    log = Turning()
    log.turn(Stance.DOWN, 10.0)
    log.turn(Stance.UP, 12.5)
    assert log.lines == [
        ("engine down", {"engine": "gpu-0", "why": "its health page does not answer: connect"}),
        ("engine up", {"engine": "gpu-0", "down_s": 2.5}),
    ]


def test_a_watch_that_begins_is_a_line_only_where_its_engine_stands_otherwise_than_told() -> None:
    log = Turning()
    log.turn(Stance.UP, 0.0)
    log.turn(Stance.DOWN, 10.0)
    log.turn(Stance.DOWN, 11.0)
    log.turn(Stance.UP, 12.5)
    assert log.lines == [
        ("engine down", {"engine": "gpu-0", "why": "its health page does not answer: connect"}),
        ("engine up", {"engine": "gpu-0", "down_s": 2.5}),
    ]


def test_an_engine_that_flutters_is_a_few_lines_and_the_last_one_is_how_it_stands() -> None:
    log = Turning()
    for turn in range(101):
        log.turn(Stance.UP if turn % 2 else Stance.DOWN, turn * 0.1)
    assert len(log.lines) == MOST_TURNS
    ((wait_s, catch_up),) = log.put_off
    log.now += wait_s
    catch_up()
    event, fields = log.lines[-1]
    assert (event, fields["turns"]) == ("engine down", 101 - MOST_TURNS)
    log.turn(Stance.UP, log.now + QUIET_S)
    assert log.lines[-1][0] == "engine up"


def test_an_engine_that_flutters_hides_no_other() -> None:
    log = Turning()
    for turn in range(20):
        log.turn(Stance.UP if turn % 2 else Stance.DOWN, turn * 0.1)
    log.turn(Stance.DOWN, 3.0, "gpu-1")
    assert log.lines[-1][1]["engine"] == "gpu-1"


def test_an_engine_that_is_again_what_was_said_of_it_last_is_no_line() -> None:
    log = Turning()
    for turn in range(MOST_TURNS + 2):
        log.turn(Stance.UP if turn % 2 else Stance.DOWN, turn * 0.1)
    ((_wait_s, catch_up),) = log.put_off
    catch_up()
    assert len(log.lines) == MOST_TURNS


def _snapshot(name: str, limit: int) -> Snapshot:
    settings = Settings((LaneSettings("lane"),), (EngineSettings(name, limit),))
    return build_governor(settings, 0.0).snapshot(0.0)


def _engine(name: str = "a", limit: int = 4) -> EngineSnapshot:
    return _snapshot(name, limit).engines[0]


PAUSED = AccountReading(1.0, 0.0, 42.04, breaker_open=False)


class States:
    """Engines that are set by hand, and the looks that were put off."""

    def __init__(self) -> None:
        self.now = replace(_snapshot("a", 4), engines=())
        self.losses: dict[str, int] = {}
        self.log = Written()
        self.waits: list[float] = []
        self.cancelled = 0
        self.notices = StateNotices(self.log, lambda: self.now, lambda: self.losses, cast("Any", self._later))

    def _later(self, wait_s: float, look: Callable[[], None]) -> "States":
        del look
        self.waits.append(wait_s)
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def look(self, *engines: EngineSnapshot, **caps: int) -> list[tuple[object, ...]]:
        """Return the lines of one look at these engines, or at some with these caps."""
        engines = engines or tuple(_engine(name, cap) for name, cap in caps.items())
        self.now = replace(self.now, engines=engines)
        before = len(self.log.lines)
        self.notices.look()
        return [(event, *fields.values()) for event, fields in self.log.lines[before:]]


def test_a_cap_that_moves_by_a_tenth_since_the_last_line_is_one_line() -> None:
    states = States()

    assert states.look(a=100, b=3) == []
    assert states.look(a=91, b=3) == []
    assert states.look(a=89, b=4) == [("engine cap", "a", 89, 100), ("engine cap", "b", 4, 3)]
    assert states.look(a=82, b=4) == []
    assert states.look(a=80, b=4) == [("engine cap", "a", 80, 89)]
    assert states.waits == [LOOK_S] * 5
    states.notices.stop()
    states.notices.stop()
    assert states.cancelled == 1


def test_shares_of_a_cluster_are_no_lines() -> None:
    states = States()
    states.notices.tells_caps = False
    assert states.look(a=100) == states.look(a=5) == []


def test_an_account_that_pauses_and_takes_work_again_is_a_line_each() -> None:
    states, engine = States(), _engine()

    assert states.look(engine) == []
    assert states.look(replace(engine, account=PAUSED)) == [("account paused", "a", 42.0)]
    assert states.look(replace(engine, account=replace(PAUSED, paused_s=27.0))) == []
    assert states.look(engine) == [("account pause over", "a")]
    assert states.look(engine) == []


def test_an_engine_that_is_silent_and_speaks_again_is_a_line_each() -> None:
    states, engine = States(), _engine()

    assert states.look(replace(engine, silent_s=10.0)) == [("engine silent", "a", 10.0)]
    assert states.look(replace(engine, silent_s=20.0)) == []
    assert states.look(engine) == [("engine silent no more", "a")]


def test_a_certificate_that_ends_soon_one_that_has_expired_and_one_that_is_renewed_are_a_line_each() -> None:
    states, now = States(), datetime.now(UTC)

    def ends_in(days: float) -> None:
        ends = now + timedelta(days=days)
        certificate = Certificate("listen.tls.cert", "a.pem", ends - timedelta(days=90), ends)
        states.notices.certificates = lambda: (certificate,)

    def told(*_engines: EngineSnapshot) -> list[tuple[object, ...]]:
        return [line[:3] for line in states.look(*_engines)]

    engine = _engine()
    ends_in(31)
    assert told(engine) == []
    ends_in(29)
    assert told(engine) == [("certificate expires soon", "listen.tls.cert", "a.pem")]
    assert told(engine) == []
    ends_in(-1)
    assert told(engine) == [("certificate has expired", "listen.tls.cert", "a.pem")]
    assert told(engine) == []
    ends_in(90)
    assert told(engine) == [("certificate renewed", "listen.tls.cert", "a.pem")]
    assert told(engine) == []


def test_metrics_that_an_engine_shows_no_more_are_a_line_and_one_when_they_are_back() -> None:
    states, blind = States(), replace(_engine(), seen_running=None)
    seen = replace(blind, seen_running=1)

    for _ in range(2 * UNSEEN_LOOKS):
        assert states.look(blind) == [], "it has never shown any"
    assert states.look(seen) == states.look(blind) == states.look(seen) == [], "one look without an answer"
    assert states.look(blind) == []
    assert states.look(blind) == [("engine metrics lost", "a", UNSEEN_LOOKS * LOOK_S)]
    assert states.look(blind) == []
    assert states.look(seen) == [("engine metrics found again", "a")]
    for _ in range(2 * UNSEEN_LOOKS):
        assert states.look(replace(blind, up=False)) == [], "that it is down is a line of its own"


def test_connections_and_lines_that_are_lost_are_a_line_when_it_begins_and_one_when_it_is_over() -> None:
    """The answer to a connection too many is made once, and so was its line: of all that came later the log said nothing."""
    states, lost = States(), []
    for refused, lines in ((0, 0), (41, 0), (99, 3), (99, 4), (99, 4), (100, 4)):
        states.losses = {"connections refused": refused, "attempt lines lost": lines}
        lost.append(states.look())

    assert lost == [
        [],
        [("connections refused", 41)],
        [("attempt lines lost", 3)],
        [("connections refused no more",)],
        [("attempt lines lost no more",)],
        [("connections refused", 1)],
    ]


def test_an_engine_that_comes_anew_begins_without_a_line() -> None:
    states = States()

    assert states.look(a=100) == []
    assert states.look(b=5) == []
    assert states.look(a=10, b=5) == []
