"""The headers of providers' limits: what both families say is read, what is absurd is unknown, ours are read back."""

import pytest
from hypothesis import given, strategies as some

from millgate.core.decisions import QuotaState
from millgate.core.events import Remaining
from millgate.core.words import QuotaKind
from millgate.dialects.quota_headers import (
    go_duration,
    read_quota_headers,
    rfc_3339,
    write_anthropic,
    write_openai,
)

NOON_S = 1_767_268_800.0  # 2026-01-01T12:00:00Z
DATE = (b"date", b"Thu, 01 Jan 2026 12:00:00 GMT")


def openai(noun: str, limit: str = "", remaining: str = "", reset: str = "") -> list[tuple[bytes, bytes]]:
    values = {"limit": limit, "remaining": remaining, "reset": reset}
    return [
        (f"x-ratelimit-{what}-{noun}".encode(), value.encode()) for what, value in values.items() if value
    ]


def anthropic(noun: str, limit: str, remaining: str, reset: str) -> list[tuple[bytes, bytes]]:
    values = {"limit": limit, "remaining": remaining, "reset": reset}
    return [(f"anthropic-ratelimit-{noun}-{what}".encode(), value.encode()) for what, value in values.items()]


def test_openais_family_is_read() -> None:
    headers = [*openai("requests", "60", "59", "1s"), *openai("tokens", "150000", "149984", "6m0s")]

    assert read_quota_headers(headers, 0.0) == (
        Remaining(QuotaKind.RPM, 60, 59, 1.0),
        Remaining(QuotaKind.TPM, 150_000, 149_984, 360.0),
    )


def test_a_limit_that_refills_by_the_day_is_one_on_requests_a_day() -> None:
    """One used of 10,000 comes back in 8.64 s: a day's limit, though the header does not say so."""
    (word,) = read_quota_headers(openai("requests", "10000", "9999", "8.64s"), 0.0)

    assert word.kind is QuotaKind.RPD


def test_anthropics_family_is_read_against_the_providers_own_clock() -> None:
    headers = [
        DATE,
        *anthropic("requests", "50", "49", "2026-01-01T12:00:01Z"),
        *anthropic("input-tokens", "30000", "29000", "2026-01-01T13:00:02+01:00"),
        *anthropic("output-tokens", "8000", "8000", "2026-01-01T11:59:59Z"),
        *anthropic("tokens", "8000", "8000", "2026-01-01T12:00:00Z"),
    ]

    assert read_quota_headers(headers, wall_now_s=NOON_S + 500.0) == (
        Remaining(QuotaKind.RPM, 50, 49, 1.0),
        Remaining(QuotaKind.ITPM, 30_000, 29_000, 2.0),
        Remaining(QuotaKind.OTPM, 8_000, 8_000, 0.0),
    )


def test_without_a_date_our_own_clock_must_do() -> None:
    headers = anthropic("requests", "50", "49", "2026-01-01T12:00:30Z")

    assert read_quota_headers(headers, NOON_S)[0].reset_s == 30.0
    assert read_quota_headers([(b"date", b"yesterday"), *headers], NOON_S)[0].reset_s == 30.0


def test_an_answer_that_says_nothing_is_read_as_nothing() -> None:
    assert read_quota_headers([(b"content-type", b"application/json"), DATE], NOON_S) == ()


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "read"),
    [
        ("60", "", "", Remaining(QuotaKind.RPM, 60)),
        ("60", "61", "1s", Remaining(QuotaKind.RPM, 60, None, 1.0)),
        ("0", "5", "", Remaining(QuotaKind.RPM, None, 5)),
        ("-1", "5", "", Remaining(QuotaKind.RPM, None, 5)),
        ("nan", "5", "", Remaining(QuotaKind.RPM, None, 5)),
        ("1e99", "5", "", Remaining(QuotaKind.RPM, None, 5)),
        ("99999999999", "5", "", Remaining(QuotaKind.RPM, None, 5)),
        ("60", "0", "tomorrow", Remaining(QuotaKind.RPM, 60, 0)),
        ("60", "0", "999999h", Remaining(QuotaKind.RPM, 60, 0)),
        ("60", "0", "2026-01-01T12:00:00", Remaining(QuotaKind.RPM, 60, 0)),
        ("60", "0", "60", Remaining(QuotaKind.RPM, 60, 0, 60.0)),
    ],
)
def test_what_is_missing_or_absurd_is_unknown(
    limit: str, remaining: str, reset: str, read: Remaining
) -> None:
    assert read_quota_headers(openai("requests", limit, remaining, reset), NOON_S) == (read,)


def test_nothing_but_nonsense_is_nothing() -> None:
    assert read_quota_headers(openai("tokens", "many", "few", "soon"), NOON_S) == ()
    assert read_quota_headers(openai("tokens", "9" * 100), NOON_S) == ()


@given(
    some.lists(
        some.tuples(
            some.sampled_from(["limit", "remaining", "reset"]),
            some.binary(max_size=40) | some.sampled_from([b"0", b"7", b"-1", b"1s", b"2026-01-01T12:00:07Z"]),
        ),
        max_size=6,
    )
)
def test_no_bytes_make_the_reader_fail(pairs: list[tuple[str, bytes]]) -> None:
    headers = [(f"x-ratelimit-{what}-requests".encode(), value) for what, value in pairs]
    headers += [(f"anthropic-ratelimit-input-tokens-{what}".encode(), value) for what, value in pairs]

    for word in read_quota_headers([*headers, (b"date", pairs[0][1] if pairs else b"")], NOON_S):
        assert word.limit is None or word.limit > 0
        assert word.remaining is None or word.remaining >= 0
        assert word.reset_s is None or word.reset_s >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0121, "13ms"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (60.0, "1m0s"),
        (360.0, "6m0s"),
        (3603.0, "1h0m3s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


def test_times_are_rounded_up_to_a_second() -> None:
    assert rfc_3339(NOON_S + 0.2) == "2026-01-01T12:00:01Z"


STATES = (
    QuotaState("all.rpm", QuotaKind.RPM, 600, 300, 30.0),
    QuotaState("ann.rpm", QuotaKind.RPM, 60, 6.9, 54.0),
    QuotaState("ann.itpm", QuotaKind.ITPM, 30_000, 15_000, 30.0),
    QuotaState("ann.otpm", QuotaKind.OTPM, 8_000, 800, 54.0),
)


def test_of_several_buckets_the_one_with_the_least_left_is_told() -> None:
    told = dict(write_openai(STATES))

    assert told[b"x-ratelimit-limit-requests"] == b"60"
    assert told[b"x-ratelimit-remaining-requests"] == b"6"
    assert told[b"x-ratelimit-reset-requests"] == b"54s"
    assert told[b"x-ratelimit-limit-tokens"] == b"8000"


def test_what_is_written_is_read_back() -> None:
    expected = (Remaining(QuotaKind.RPM, 60, 6, 54.0), Remaining(QuotaKind.ITPM, 30_000, 15_000, 30.0))

    assert read_quota_headers(write_anthropic(STATES, NOON_S), NOON_S)[:2] == expected
    assert read_quota_headers(write_openai(STATES), NOON_S)[0] == expected[0]
    assert write_openai(()) == write_anthropic((), NOON_S) == []


@pytest.mark.parametrize("zone", ["+" + "9" * 14, "-" + "9" * 40, "+9999", "never"])
def test_a_date_of_an_absurd_zone_is_none_and_no_error(zone: str) -> None:
    """The error made a failed answer of each whole one."""
    headers = [
        *write_anthropic(STATES, NOON_S),
        (b"date", f"Thu, 01 Jan 2026 12:00:00 {zone}".encode()),
    ]

    assert [each.limit for each in read_quota_headers(headers, NOON_S)][:1] == [60]
