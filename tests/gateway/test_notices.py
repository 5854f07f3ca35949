"""Notices: one line of a kind a minute, with how many there were."""

from millgate.gateway.notices import MOST_KINDS, QUIET_S, Notices


class Written:
    """A log that keeps its lines, and a clock that stands where it is put."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.now = 0.0
        self.notices = Notices(self, lambda: self.now)

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))


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
