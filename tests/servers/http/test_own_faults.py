"""A fault of our own must not leave a client waiting or a permit out."""

from typing import Any, NoReturn

from gateway.harness import chat, run, standing


class Faulty:
    """An upstream that fails as only a bug can."""

    def request(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a bug")

    def close(self) -> None:
        """Do nothing."""


def test_a_fault_while_sending_is_an_answer_and_one_outcome() -> None:
    async def body() -> None:
        async with standing() as stand:
            door = stand.gateway.door
            door.engines = {name: route._replace(upstream=Faulty()) for name, route in door.engines.items()}
            got = await stand.ask(chat())
            assert (got.status, got.error["code"]) == (502, "upstream_broken")
            await stand.settle()
            assert stand.outcomes() == {"engine_failed": 1}

    run(body(), faults_told=1)
