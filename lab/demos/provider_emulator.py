"""The provider of `lab demo provider` as a process: `lab.provider.service` on one port, its counters on another.

    python -m lab.demos.provider_emulator '{"limits": [["rpm", 600]]}'

It says `provider ready door=... counters=...` on stderr. On the port of its counters `GET /counts` reads them and
`GET /anew` starts them anew; what is asked there is no request of the account.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab.provider.service import ProviderService
from lab.upstream import answers
from lab.upstream.fake_upstream import FakeUpstream, ScriptedConnection, ScriptedRequest
from millgate.core.settings import QuotaLimit
from millgate.core.words import OutputCharge, QuotaKind

OUTPUT_FIELD = "millgate_output_tokens"
"""Where a request carries the true length of its answer; no gate reads it."""
_UNASKED_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ProviderSetup:
    """An account, the first of whose limits is the one that binds, and the provider's speed in seconds.

    `limits` are kinds with their amounts, `output` is how answers are charged, `used_share` how much of every limit
    was used before the start.
    """

    limits: tuple[tuple[str, int], ...]
    output: str = OutputCharge.MAX_TOKENS
    used_share: float = 0.5
    ttft_s: float = 0.3
    tpot_s: float = 0.01

    def quota_limits(self) -> tuple[QuotaLimit, ...]:
        """Return the limits as the provider's law takes them; ValueError for a kind or charge that does not exist."""
        output = OutputCharge(self.output)
        return tuple(QuotaLimit(QuotaKind(kind), amount, output=output) for kind, amount in self.limits)

    def as_argument(self) -> str:
        """Write it for the command line of the process."""
        return json.dumps(asdict(self))


def setup_of(argument: str) -> ProviderSetup:
    """Read what `as_argument` has written."""
    given = json.loads(argument)
    limits = tuple((str(kind), int(amount)) for kind, amount in given.pop("limits"))
    return ProviderSetup(limits, **given)


def provider_of(setup: ProviderSetup) -> ProviderService:
    """Return the emulator of this account, whose answers are as long as their requests say."""
    return ProviderService(
        setup.quota_limits(),
        output_tokens=_wanted_tokens,
        ttft_s=setup.ttft_s,
        tpot_s=setup.tpot_s,
        used_share=setup.used_share,
    )


def counts(provider: ProviderService) -> dict[str, Any]:
    """Return what has been counted since the start, or since it was begun anew; `used` are shares of each limit."""
    return {
        "asked": provider.asked,
        "passed": provider.passed,
        "refused": {str(kind): count for kind, count in provider.refused.items()},
        "used": {str(kind): provider.used_share(kind) for kind in provider.law.meters},
    }


def _wanted_tokens(request: ScriptedRequest) -> int:
    wanted = request.json().get(OUTPUT_FIELD, _UNASKED_TOKENS)
    return wanted if isinstance(wanted, int) else _UNASKED_TOKENS


class _Counters:
    """Answers requests for the counters, before or after it begins them anew."""

    def __init__(self, provider: ProviderService) -> None:
        self._provider = provider

    async def answer(self, line: ScriptedConnection) -> None:
        if line.request.target == b"/anew":
            self._provider.count_from_now()
        await line.send(answers.whole(json.dumps(counts(self._provider)).encode()))


async def _serve(setup: ProviderSetup) -> None:
    """Run until SIGTERM or SIGINT."""
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    provider = provider_of(setup)
    async with provider, FakeUpstream(_Counters(provider).answer) as counters:
        sys.stderr.write(f"provider ready door={provider.port} counters={counters.port}\n")
        sys.stderr.flush()
        await over.wait()


def main(arguments: Sequence[str]) -> int:
    """Serve the account that the one argument describes; 0 after a signal."""
    asyncio.run(_serve(setup_of(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
