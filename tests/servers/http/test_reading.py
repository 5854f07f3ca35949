"""What the door concludes from a head holds as long as its rules, and no longer."""

from hashlib import sha256

import pytest

from millgate.http1.client.repeats import Notes
from millgate.http1.server import RequestHead
from millgate.runtime.callers import Caller, Callers, CallerSettings, TenantRule
from millgate.servers.requests.reading import HeadReading, kept_reading

GUARDED = CallerSettings(tenants=(TenantRule("one", (sha256(b"key").digest(),)),))


def head(*fields: tuple[bytes, bytes]) -> RequestHead:
    headers = [(b"content-type", b"application/json"), *fields]
    path = b"/v1/completions"
    return RequestHead(b"POST", path, path, headers, 2, "127.0.0.1", dict(headers), Notes())


def kept(settings: CallerSettings, *fields: tuple[bytes, bytes]) -> bool:
    """Whether a repeat of this head would find the reading."""
    request, callers = head(*fields), Callers(settings)
    HeadReading(request, callers, Caller("one", None)).keep(request)
    return kept_reading(request, callers) is not None


def test_a_plain_head_is_concluded_from_once() -> None:
    assert kept(CallerSettings())
    assert kept(GUARDED, (b"authorization", b"Bearer key"))


@pytest.mark.parametrize("name", [b"x-millgate-tenant", b"x-millgate-lane", b"x-millgate-priority"])
def test_a_head_that_steers_is_asked_and_counted_every_time(name: bytes) -> None:
    assert not kept(CallerSettings(), (name, b"x"))


def test_an_open_tenant_is_seen_every_time() -> None:
    assert not kept(CallerSettings(open_tenants=True))


def test_a_head_that_is_refused_is_not_kept() -> None:
    assert not kept(CallerSettings(), (b"content-encoding", b"gzip"))
    assert not kept(CallerSettings(), (b"x-millgate-deadline-ms", b"soon"))


def test_other_keys_end_what_was_concluded() -> None:
    request, callers = head((b"authorization", b"Bearer key")), Callers(GUARDED)
    HeadReading(request, callers, Caller("one", None)).keep(request)
    assert kept_reading(request, Callers(CallerSettings(), callers)) is None


def test_a_retry_by_envoy_is_read_as_one() -> None:
    request = head((b"x-stainless-retry-count", b"0"), (b"x-envoy-attempt-count", b"2"))
    assert HeadReading(request, Callers(GUARDED), Caller("one", None)).retries == 1
