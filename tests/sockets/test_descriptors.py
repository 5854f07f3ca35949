"""The one account of sockets: what it leaves free, and what engines take from clients."""

import resource

import pytest

from millgate.sockets.descriptors import LINGERING, Descriptors, DoorClients


def test_the_room_leaves_a_hundred_descriptors() -> None:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert Descriptors().room == max(2, soft - 100)


def test_clients_may_have_what_the_engines_share_leaves_whether_it_is_used_or_not() -> None:
    others: list[None] = []
    account = Descriptors(lambda: len(others), engine_share=0.5)
    account.room = 20
    found = []
    for more in (0, 10, 3, 27):
        others += [None] * more
        found.append(account.most_clients)
    assert found == [10, 10, 7, 1]


def test_doors_share_the_room_and_each_client_is_counted_once() -> None:
    account = Descriptors()
    account.room = 3
    first, second = DoorClients(account, None), DoorClients(account, 1)
    first.enter("a")
    first.enter("a")
    second.enter("b")
    first.leave("b")
    assert account.clients == 2
    assert not first.overdrawn
    assert not second.overdrawn
    second.enter("c")
    assert [first.overdrawn, second.overdrawn] == [False, True]
    first.enter("d")
    assert [first.overdrawn, second.overdrawn] == [True, True]
    for number in range(LINGERING + 1):
        first.enter(number)
    assert [first.crowded, second.crowded] == [True, True]
    for client in ("a", "a", "d", *range(LINGERING + 1)):
        first.leave(client)
    assert account.clients == 2
    assert not first.crowded


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_beyond_the_whole_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"engine_share is {share}"):
        Descriptors(engine_share=share)
