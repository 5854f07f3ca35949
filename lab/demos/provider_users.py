"""The users of `lab demo provider`: they speak the provider's dialect, ask through the gate, and honour hints."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lab.demos.provider_emulator import OUTPUT_FIELD
from millgate.client.answers import REFUSALS
from millgate.demos.connection import AttemptAnswer, Endpoint, GateAddress
from millgate.demos.users import BYTES_PER_TOKEN, NUMBER_TOKENS, WORD, SdkUser, Story, Wish, open_loop

MESSAGES_PATH = "/v1/messages"
MODEL = "demo"
TRIES = 3
"""The first, and the two more that the SDKs make by themselves."""
PATIENCE_S = 60.0
"""Of every try, far beyond the gate's deadline: no user hangs up, every refusal is the gate's."""


@dataclass(slots=True)
class UserAccounts:
    """What users met since `since_s`, loop time: answers by status, the gate's reasons, and what became of promises.

    A promise is a hint that its user kept to the millisecond; it is kept when that try was answered.
    """

    since_s: float = 0.0
    answered: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    hints: list[float] = field(default_factory=list)
    promised: int = 0
    kept: int = 0

    def note(self, answer: AttemptAnswer, *, promised: bool, now: float) -> None:
        """Write one answer down; before `since_s` nothing is."""
        if now < self.since_s:
            return
        good = answer.status == 200 and not answer.hung_up
        self.promised += promised
        self.kept += promised and good
        if good:
            self.answered += 1
        elif answer.status in REFUSALS:
            self.refusals[answer.reason or f"provider {answer.status}"] += 1
            if answer.hint_s is not None:
                self.hints.append(answer.hint_s)
        else:
            self.refusals["no answer" if not answer.status else str(answer.status)] += 1


class AccountUser(SdkUser):
    """A user whose every answer is written down."""

    def __init__(self, endpoint: Endpoint, dice: random.Random, books: UserAccounts) -> None:
        super().__init__(endpoint, PATIENCE_S, TRIES, dice=dice, time_scale=1.0)
        self._books = books
        self._promised = False

    def _tries_again_after(self, answer: AttemptAnswer) -> float | None:
        self._books.note(answer, promised=self._promised, now=answer.ended_at)
        wait_s = super()._tries_again_after(answer)
        self._promised = wait_s is not None and wait_s == answer.hint_s
        return wait_s


def write_body(number: int, wish: Wish, *, max_tokens: int) -> bytes:
    """Write a request of either dialect; its prompt begins with its number, so that no two are each other's retries."""
    text = f"{number:0{NUMBER_TOKENS * BYTES_PER_TOKEN}d}" + WORD * max(0, wish.prompt_tokens - NUMBER_TOKENS)
    body = {
        "messages": [{"role": "user", "content": text}],
        OUTPUT_FIELD: wish.output_tokens,
        "model": MODEL,
        "stream": True,
        "max_tokens": max_tokens,
    }
    return json.dumps(body).encode("ascii")


async def ask_all(
    door: GateAddress,
    path: str,
    wishes: list[Wish],
    books: UserAccounts,
    *,
    warmup_s: float,
    max_tokens: int,
    at_warm: Callable[[], object],
    at_end: Callable[[], object],
    on_story: Callable[[Story], None],
) -> None:
    """Send every wish at its time; call `at_warm` after the warm-up and `at_end` after the last wish."""
    loop = asyncio.get_running_loop()
    books.since_s = loop.time() + warmup_s
    dice = random.Random(1)
    watch = asyncio.create_task(_at_times(warmup_s, wishes[-1].at_s, at_warm, at_end))
    endpoint = Endpoint(door, path)
    await open_loop(
        wishes,
        partial(write_body, max_tokens=max_tokens),
        lambda body: AccountUser(endpoint, dice, books).live(body),
        on_story=on_story,
        grace_s=0.5,
    )
    await watch
    endpoint.close()
    # Connections that were aborted are closed in the loop's next turn.
    await asyncio.sleep(0)


async def _at_times(
    warm_s: float, end_s: float, at_warm: Callable[[], object], at_end: Callable[[], object]
) -> None:
    await asyncio.sleep(warm_s)
    await asyncio.to_thread(at_warm)
    await asyncio.sleep(end_s - warm_s)
    await asyncio.to_thread(at_end)
