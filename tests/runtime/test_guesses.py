"""Failed authentications are counted by peer, within a bound."""

from millgate.runtime.guesses import MOST_FAILURES, WINDOW_S, Guesses, site_of


def test_the_failure_after_the_last_allowed_one_is_told_to_stop() -> None:
    guesses = Guesses()

    waits = [guesses.failed("192.0.2.1", 10.0) for _ in range(MOST_FAILURES + 1)]

    assert waits == [0.0] * MOST_FAILURES + [WINDOW_S]
    assert guesses.failed("192.0.2.2", 10.0) == 0.0


def test_a_new_minute_is_a_new_count() -> None:
    guesses = Guesses()
    for _ in range(MOST_FAILURES + 5):
        guesses.failed("192.0.2.1", 0.0)

    assert guesses.failed("192.0.2.1", WINDOW_S - 1) == 1.0
    assert guesses.failed("192.0.2.1", WINDOW_S) == 0.0


def test_addresses_of_one_ipv6_site_are_one_peer() -> None:
    assert site_of("2001:db8:1:2::1") == site_of("2001:db8:1:2:ffff::9%eth0") != site_of("2001:db8:1:3::1")
    assert site_of("::ffff:192.0.2.1") == site_of("192.0.2.1")


def test_the_table_is_bounded_and_forgets_the_oldest() -> None:
    guesses = Guesses(most_peers=3)
    for _ in range(MOST_FAILURES):
        guesses.failed("192.0.2.1", 0.0)
    for number in range(2, 6):
        guesses.failed(f"192.0.2.{number}", 1.0)

    assert len(guesses) == 3
    assert guesses.failed("192.0.2.1", 2.0) == 0.0
