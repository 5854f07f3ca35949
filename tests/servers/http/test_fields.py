"""Header fields, one by one."""

import time
from email.utils import formatdate

import pytest

from millgate.http1.client.contract import is_harmless_id
from millgate.runtime.verdicts import hint_s, seconds
from millgate.servers.requests.fields import (
    for_client,
    for_engine,
    retry_count,
    with_credential,
)
from millgate.servers.requests.tickets import ends, fingerprint

SECRET = b"k" * 32


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b"600", 600.0),
        (b"1.5", 1.5),
        (b"0", None),
        (b"0.0", None),
        (b"-1", None),
        (b"nan", None),
        (b"inf", None),
        (b"1e9", None),
        (b"1_0", None),
        (b"", None),
        (b"9" * 40, None),
        (None, None),
    ],
)
def test_only_plain_positive_numbers_are_read(value: bytes | None, read: float | None) -> None:
    assert seconds(value) == read


@pytest.mark.parametrize(
    ("label", "count"), [(b"0", 0), (b"2", 2), (b"-1", None), (b"x", None), (b"99999", None), (None, None)]
)
def test_a_retry_label_is_a_small_number_or_none(label: bytes | None, count: int | None) -> None:
    assert retry_count(label) == count


@pytest.mark.parametrize(
    ("label", "attempts", "count"),
    [
        (None, b"2", 1),
        (None, b"1", None),
        (b"0", b"3", 2),
        (b"0", b"1", 0),
        (b"2", b"1", 2),
        (b"2", b"2", 2),
        (b"1", b"0", 1),
        (b"1", b"x", 1),
    ],
)
def test_a_retry_by_envoy_is_one_whatever_the_client_says_of_its_own(
    label: bytes | None, attempts: bytes, count: int | None
) -> None:
    assert retry_count(label, attempts) == count


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        (b"retry-after", b"7", 7.0),
        (b"retry-after", b"900", 60.0),
        (b"retry-after-ms", b"250", 0.25),
        (b"retry-after-ms", b"1", 0.1),
        (b"retry-after", b"Wed, 21 Oct 2015 07:28:00 GMT", 0.1),
        (b"retry-after", b"Wed, 21 Oct 2115 07:28:00 GMT", 60.0),
        (b"retry-after", b"Wed, 41 Oct 2115 07:28:00 GMT", None),
        (b"retry-after", b"soon", None),
        (b"x-other", b"7", None),
    ],
)
def test_an_engines_hint_is_clamped_to_what_we_say_ourselves(
    name: bytes, value: bytes, hint: float | None
) -> None:
    assert hint_s(((name, value),)) == hint


def test_an_engines_hint_may_be_a_date() -> None:
    date = formatdate(time.time() + 30.0, usegmt=True).encode()
    hint = hint_s(((b"retry-after", date),))
    assert hint is not None
    assert 28.0 < hint <= 30.0


def test_a_hint_that_is_a_date_is_held_against_the_answers_own() -> None:
    """The clock of the provider is ten minutes ahead: the hint was a minute, the longest."""
    said, until = (formatdate(time.time() + ahead_s, usegmt=True).encode() for ahead_s in (600.0, 603.0))
    assert hint_s(((b"date", said), (b"retry-after", until))) == 3.0


@pytest.mark.parametrize("given", [b"a\x1b[31m", b'a"b', b"a\\b", b"\xff", b"", b"a b"])
def test_an_id_that_could_break_a_log_line_is_not_taken(given: bytes) -> None:
    assert not is_harmless_id(given)


def test_fields_named_by_connection_stay_here() -> None:
    headers = ((b"x-hop", b"1"), (b"x-end", b"2"), (b"connection", b"X-Hop, close"))
    assert for_engine(headers) == [(b"x-end", b"2")]


def test_fields_named_by_a_second_connection_field_stay_here_too() -> None:
    hops = ((b"x-one", b"1"), (b"x-two", b"2"), (b"x-three", b"3"))
    named = ((b"connection", b"keep-alive"), (b"connection", b"X-One"), (b"connection", b"x-three, X-Two"))
    assert for_engine((*hops, *named, (b"x-end", b"4"))) == [(b"x-end", b"4")]


@pytest.mark.parametrize(
    "name",
    [b"content_length", b"transfer_encoding", b"x_forwarded-host", b"x_request_id", b"x_millgate_tenant"],
)
def test_a_name_that_some_servers_read_as_one_of_ours_stays_here(name: bytes) -> None:
    assert for_engine(((name, b"1"), (b"x_own", b"2"))) == [(b"x_own", b"2")]
    assert for_client(
        ((b"content_length", b"1"), (b"x_millgate_reason", b"1"), (b"x_own", b"2")), own_key=False
    ) == [(b"x_own", b"2")]


@pytest.mark.parametrize(
    "name",
    b"authorization x-api-key x_api_key api-key x-goog-api-key cookie openai-organization OpenAI-Project".lower().split(),
)
def test_no_credential_of_a_client_stands_beside_the_engines_own(name: bytes) -> None:
    assert with_credential([(name, b"mine")], b"own") == [(b"authorization", b"Bearer own")]


def test_a_key_of_anthropic_is_no_bearer_where_anthropic_is_asked_in_its_own_dialect() -> None:
    """It takes a bearer for an OAuth token: "Invalid bearer token"."""
    key, other = b"sk-ant-api03-x", b"token"
    assert with_credential([], key, "anthropic") == [(b"x-api-key", key)]
    assert with_credential([], key) == [(b"authorization", b"Bearer " + key)]
    assert with_credential([], other, "anthropic") == [
        (b"authorization", b"Bearer " + other),
        (b"x-api-key", other),
    ]


def test_many_names_are_sorted_right_however_many_have_been_seen() -> None:
    for number in range(5000):
        name = b"x-%d" % number
        own = b"x-millgate-%d" % number
        assert for_engine(((name, b""), (own, b""))) == [(name, b"")]


def test_our_own_names_do_not_come_from_an_engine() -> None:
    back = for_client(((b"x-millgate-reason", b"no"), (b"date", b"x"), (b"x-kept", b"1")), own_key=False)
    assert back == [(b"x-kept", b"1")]


def test_a_provider_tells_no_tenant_whose_account_the_gates_key_belongs_to() -> None:
    """OpenAI and Anthropic name the organization in each answer, and their cookies are the account's."""
    told = [
        (b"openai-organization", b"acme"),
        (b"openai-project", b"p"),
        (b"anthropic-organization-id", b"1"),
    ]
    told.append((b"set-cookie", b"sid=1"))
    assert for_client(told, own_key=True) == []
    assert for_client(told, own_key=False) == told


def of(tenant: str, body: bytes, secret: bytes = SECRET) -> int:
    return fingerprint(secret, tenant, len(body), body)


def test_a_browser_believes_nothing_of_the_gates_host_that_was_said_of_the_providers() -> None:
    """It would ask the gate by HTTP/3, demand TLS of all its company's hosts, and report the gate's failures to the provider's network."""
    told = [
        (b"alt-svc", b'h3=":443"; ma=86400'),
        (b"strict-transport-security", b"max-age=31536000; includeSubDomains"),
        (b"nel", b'{"report_to":"cf-nel"}'),
        (b"report-to", b'{"endpoints":[]}'),
        (b"reporting-endpoints", b'main="https://reports.example"'),
    ]
    assert for_client([*told, (b"server", b"cloudflare")], own_key=False) == [(b"server", b"cloudflare")]


def test_no_client_is_sent_to_an_engines_own_address() -> None:
    told = [
        (b"location", b"http://10.0.0.7:8000/v1/batches/1"),
        (b"content-location", b"http://10.0.0.7:8000/v1/models"),
        (b"refresh", b"0; url=http://10.0.0.7:8000/"),
    ]
    assert for_client([*told, (b"via", b"1.1 router")], own_key=False) == [(b"via", b"1.1 router")]


def test_equal_requests_of_one_tenant_have_one_fingerprint() -> None:
    body = b"x" * 10_000
    assert of("t", body) == of("t", bytes(bytearray(body)))


@pytest.mark.parametrize("size_bytes", [0, 1, 1024, 3072, 4095, 4096, 4097, 100_000])
def test_what_is_kept_of_a_body_is_small_and_has_its_fingerprint(size_bytes: int) -> None:
    body = bytes(number % 251 for number in range(size_bytes))
    kept = ends(body)
    assert len(kept) <= 4096
    assert fingerprint(SECRET, "t", len(body), kept) == of("t", body)


@pytest.mark.parametrize(
    ("tenant", "body"),
    [
        ("other", b"a" * 5000),
        ("t", b"a" * 5001),
        ("t", b"b" + b"a" * 4999),
        ("t", b"a" * 4999 + b"b"),
    ],
)
def test_another_tenant_length_head_or_tail_is_another_request(tenant: str, body: bytes) -> None:
    assert of(tenant, body) != of("t", b"a" * 5000)


def test_another_process_has_other_fingerprints() -> None:
    assert of("t", b"x") != of("t", b"x", b"j" * 32)
