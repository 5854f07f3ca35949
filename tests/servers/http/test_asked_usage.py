"""Which engines are asked for the usage of streams: what is believed of them, and for how long."""

from millgate.servers.http.asked_usage import FORGOTTEN_S, AskedUsage

COMPLAINT = b'{"error":{"message":"unknown field stream_options"}}'


def test_an_engine_that_has_refused_is_asked_again_after_some_minutes() -> None:
    now = 1000.0
    asked = AskedUsage(lambda: now)
    assert asked.may_ask("a")
    asked.note("a", takes=False)
    assert not asked.may_ask("a")
    assert asked.may_ask("b")
    now += FORGOTTEN_S
    assert asked.may_ask("a")
    asked.note("a", takes=True)
    assert asked.may_ask("a")


def test_a_complaint_is_ours_unless_an_engine_that_takes_them_may_repeat_its_client() -> None:
    asked = AskedUsage(lambda: 0.0)
    quoted = b'{"messages":[{"role":"user","content":"what are stream_options?"}]}'
    assert asked.may_be_meant("a", COMPLAINT, quoted)
    asked.note("a", takes=True)
    assert not asked.may_be_meant("a", COMPLAINT, quoted)
    assert asked.may_be_meant("a", COMPLAINT, b"{}")
    assert not asked.may_be_meant("a", b'{"error":{}}', b"{}")


def test_engines_that_come_and_go_take_no_memory() -> None:
    asked = AskedUsage(lambda: 0.0)
    for number in range(10_000):
        asked.note(f"10.0.0.{number}", takes=True)
    assert len(asked._refused_until) <= 4096
