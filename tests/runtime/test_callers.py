"""Who asks: keys by their whole hash, trusted peers by their network, and nobody by a header of his own."""

from hashlib import sha256

import pytest
from hypothesis import given, strategies as st

from millgate.runtime.callers import (
    FORGET_AFTER_S,
    LONGEST_KEY,
    OTHERS,
    Caller,
    Callers,
    CallerSettings,
    OpenTenants,
    TenantRule,
    session_of_model,
)

A, B = "mgk_key-of-a", "mgk_key-of-b"
LANES = ("interactive", "bulk", "secret")
CHAT = b"/v1/chat/completions"
INSIDE, OUTSIDE = "10.1.2.3", "192.0.2.1"

TENANTS = (
    TenantRule("a", (sha256(A.encode()).digest(),), ("interactive", "bulk")),
    TenantRule("b", (sha256(B.encode()).digest(), sha256(b"old").digest()), (), "bulk"),
)


def guarded(**more: object) -> Callers:
    settings = {"tenants": TENANTS, "lanes": LANES, "trusted_peers": ("10.0.0.0/8", "fd00::/8"), **more}
    return Callers(CallerSettings(**settings))  # type: ignore[arg-type]


def ask(
    callers: Callers, *fields: tuple[str, str], peer: str = OUTSIDE, path: bytes = CHAT, now: float = 0.0
) -> Caller | None:
    """Ask both questions, which must agree."""
    pairs = [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in fields]
    named = dict(reversed(pairs))
    caller = callers.identify(named, pairs, peer, path, now)
    assert callers.admits(named, pairs, peer) is (caller is not None)
    return caller


def bearer(key: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {key}")


def test_a_key_names_its_tenant_in_either_field() -> None:
    callers = guarded()

    assert ask(callers, bearer(A)) == ("a", "interactive")
    assert ask(callers, ("x-api-key", A)) == ("a", "interactive")
    assert ask(callers, ("authorization", f"bearer  {A} ")) == ("a", "interactive")
    assert ask(callers, bearer(A), ("x-api-key", A)) == ("a", "interactive")
    assert ask(callers, bearer("old")) == ("b", "bulk")


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [bearer("")],
        [("authorization", "Bearer")],
        [("authorization", A)],
        [("authorization", f"Basic {A}")],
        [bearer(A[:-1])],
        [bearer(A + "x")],
        [bearer(A.upper())],
        [bearer(sha256(A.encode()).hexdigest())],
        [bearer("x" * (LONGEST_KEY + 1))],
        [bearer("x" * 1_000_000)],
        [bearer(A), ("x-api-key", B)],
        [bearer(A), ("x-api-key", "")],
        [bearer(A), bearer(A)],
        [bearer(A), bearer("wrong")],
        [("x-api-key", A), ("x-api-key", B)],
        [("x-millgate-tenant", "a")],
    ],
)
def test_anything_but_one_good_key_is_nobody(fields: list[tuple[str, str]]) -> None:
    assert ask(guarded(), *fields) is None


@given(st.text(max_size=60).filter(lambda text: text.strip() not in {A, B, "old"}))
def test_no_other_text_is_a_key(text: str) -> None:
    pairs = [(b"authorization", b"Bearer " + text.encode("utf-8", "surrogatepass"))]

    assert guarded().admits(dict(pairs), pairs, OUTSIDE) is False


def test_a_client_chooses_among_the_lanes_of_its_key_and_no_other() -> None:
    callers = guarded()

    assert ask(callers, bearer(A), ("x-millgate-lane", "bulk")) == ("a", "bulk")
    assert callers.spoofed == 0
    assert ask(callers, bearer(A), ("x-millgate-lane", "secret")) == ("a", "interactive")
    assert ask(callers, bearer(B), ("x-millgate-lane", "interactive")) == ("b", "bulk")
    assert ask(callers, bearer(A), ("x-millgate-lane", "nowhere")) == ("a", "interactive")
    assert callers.spoofed == 3


def test_the_key_wins_over_the_tenant_that_a_client_names() -> None:
    callers = guarded()

    assert ask(callers, bearer(A), ("x-millgate-tenant", "b"), ("x-millgate-priority", "1")) == (
        "a",
        "interactive",
    )
    assert callers.spoofed == 2


def test_a_trusted_peer_names_tenant_and_lane() -> None:
    callers = guarded()
    named = (("x-millgate-tenant", "b"), ("x-millgate-lane", "secret"))

    assert ask(callers, *named, peer=INSIDE) == ("b", "secret")
    assert ask(callers, *named, peer="fd00::7%eth0") == ("b", "secret")
    assert ask(callers, *named, peer="::ffff:10.9.9.9") == ("b", "secret")
    assert callers.spoofed == 0
    assert ask(callers, *named, peer="::ffff:192.0.2.1") is None
    assert ask(callers, *named, peer="not an address") is None
    assert ask(callers, ("x-millgate-tenant", "unheard-of"), peer=INSIDE) is None


def test_a_wrong_key_is_not_mended_by_a_trusted_peer() -> None:
    """A proxy that passes a client's key on must not turn a refusal into somebody else's tenant."""
    assert ask(guarded(), bearer("wrong"), ("x-millgate-tenant", "a"), peer=INSIDE) is None


def test_a_field_that_a_trusted_peer_added_to_a_clients_own_is_not_believed() -> None:
    twice = (("x-millgate-tenant", "a"), ("x-millgate-tenant", "b"))
    callers = Callers(CallerSettings(trusted_peers=("10.0.0.0/8",), lanes=LANES))

    assert ask(guarded(), *twice, peer=INSIDE) is None
    assert ask(guarded(), twice[0], ("x-millgate-lane", "bulk"), twice[1], peer=INSIDE) is None
    assert ask(callers, *twice, peer=INSIDE) == ("", None)
    assert callers.spoofed == 1


def test_without_keys_nobody_is_refused_for_what_he_carries() -> None:
    """Credentials pass untouched there; what two of them mean is for the engine to say."""
    for settings in (
        CallerSettings(),
        CallerSettings(trusted_peers=("10.0.0.0/8",), path_lanes={CHAT: "bulk"}),
    ):
        callers = Callers(settings)
        assert ask(callers, bearer(A), ("x-api-key", B)) is not None
        assert ask(callers, bearer(A), bearer(B)) is not None


def test_without_keys_everybody_is_one_tenant_and_headers_are_dropped() -> None:
    callers = Callers(CallerSettings(lanes=LANES))

    assert ask(callers, bearer("anything"), ("x-millgate-lane", "bulk"), ("x-millgate-tenant", "t")) == (
        "",
        None,
    )
    assert callers.spoofed == 2


@pytest.mark.parametrize("name", ["", "a b", "a\n", "x" * 65, "ümlaut", "../etc", "{", "-"])
def test_a_tenant_that_is_no_name_is_not_taken_even_from_a_trusted_peer(name: str) -> None:
    callers = Callers(CallerSettings(trusted_peers=("10.0.0.0/8",)))

    assert ask(callers, ("x-millgate-tenant", name), peer=INSIDE) == ("", None)


def test_a_lane_comes_from_header_key_or_path_in_this_order() -> None:
    paths = {b"/v1/embeddings": "bulk", b"/v1/score": "secret"}
    callers = guarded(path_lanes=paths)

    assert ask(callers, bearer(A), path=b"/v1/embeddings") == ("a", "bulk")
    assert ask(callers, bearer(A), path=b"/v1/score") == ("a", "interactive")
    assert ask(callers, bearer(A), ("x-millgate-lane", "interactive"), path=b"/v1/embeddings") == (
        "a",
        "interactive",
    )
    assert ask(callers, bearer(B), path=b"/v1/score") == ("b", "bulk")
    everybody = Callers(CallerSettings(lanes=LANES, path_lanes=paths))
    assert ask(everybody, path=b"/v1/score") == ("", "secret")
    assert ask(everybody, path=CHAT) == ("", None)


def test_each_passing_credential_is_a_tenant_with_a_name_that_says_nothing_of_it() -> None:
    callers = Callers(CallerSettings(open_tenants=True))

    first, again, other = ask(callers, bearer(A)), ask(callers, ("x-api-key", A)), ask(callers, bearer(B))

    assert first is not None
    assert first == again != other
    assert A not in first.tenant
    assert sha256(A.encode()).hexdigest()[:8] not in first.tenant
    assert ask(callers) == ("", None)
    assert ask(callers, bearer(A), ("x-api-key", B)) is None


def test_a_credential_keeps_its_tenant_over_a_reload() -> None:
    before = Callers(CallerSettings(open_tenants=True))

    after = Callers(CallerSettings(open_tenants=True, lanes=LANES), before)

    assert ask(before, bearer(A)) == ask(after, bearer(A))


def test_processes_with_one_secret_name_a_credential_alike_and_others_do_not() -> None:
    settings = CallerSettings(open_tenants=True)
    one, two, other = (ask(Callers(settings, secret=key), bearer(A)) for key in (b"k" * 32, b"k" * 32, b""))

    assert one == two != other


def test_tenants_of_credentials_are_bounded_and_the_idle_make_room() -> None:
    tenants = OpenTenants(most=2)
    first = tenants.name_of(b"1", 0.0)
    tenants.name_of(b"2", 1.0)

    assert tenants.name_of(b"3", 2.0) == OTHERS
    assert tenants.name_of(b"1", 3.0) == first
    third = tenants.name_of(b"3", 1.0 + FORGET_AFTER_S)
    assert third not in {OTHERS, first}
    assert len(tenants) == 2


def test_a_session_is_named_by_the_first_of_its_headers_and_each_tenants_is_its_own() -> None:
    settings = CallerSettings(session_headers=(b"x-session-id", b"x-other"))
    callers = Callers(settings)
    one = callers.session({b"x-session-id": b"s1", b"x-other": b"s2"}, "a")
    assert one is not None
    assert 0 <= one < 2**56
    assert callers.session({b"x-session-id": b"s1"}, "a") == one
    assert callers.session({b"x-session-id": b"s1"}, "b") != one
    assert callers.session({b"x-session-id": b"s2"}, "a") == callers.session({b"x-other": b"s2"}, "a") != one
    assert callers.session({b"x-session-id": b""}, "a") is None
    assert callers.session({b"accept": b"*/*"}, "a") is None
    assert Callers(settings, callers).session({b"x-session-id": b"s1"}, "a") == one, "over a reload"
    assert Callers(settings).session({b"x-session-id": b"s1"}, "a") != one, "no client can compute it"
    assert Callers(CallerSettings()).session({b"x-session-id": b"s1"}, "a") is None


def test_a_subagent_s_session_is_its_own_and_so_is_each_model_s() -> None:
    callers = Callers(CallerSettings(session_headers=(b"x-claude-code-session-id", b"session-id")))
    claude = {b"x-claude-code-session-id": b"s1"}
    codex = {b"session-id": b"s1", b"thread-id": b"t1"}
    numbers = [
        callers.session(named, "a")
        for named in (
            claude,
            {**claude, b"x-claude-code-agent-id": b"g1"},
            codex,
            {**codex, b"thread-id": b"t2"},
        )
    ]
    assert len(set(numbers)) == 4
    assert callers.session({**claude, b"thread-id": b"t1"}, "a") == numbers[0], "another program's field"

    assert session_of_model(None, "large") is None
    assert session_of_model(numbers[0], "large") == session_of_model(numbers[0], "large")
    assert session_of_model(numbers[0], "large") != session_of_model(numbers[0], "small")
