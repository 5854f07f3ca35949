"""`python -m lab demo provider`: ten times what an account grants, through the gate, before an emulated provider.

The provider counts requests and tokens as hosted ones do and refuses with 429 what is too much. The gate is told the
account's limits and nothing else: not how full they are at the start, nor how long answers will be. What is sent
too much shows as 429s, what is sent too little as quota left unused.
"""

import asyncio
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from lab.demos.provider_emulator import ProviderSetup
from lab.demos.provider_stage import ProviderStage
from lab.demos.provider_users import MESSAGES_PATH, TRIES, UserAccounts, ask_all
from millgate.core.words import OutputCharge, QuotaKind
from millgate.demos.connection import CHAT_PATH
from millgate.demos.processes import ChildError
from millgate.demos.scores import share
from millgate.demos.showing import Show, counted, percent, seconds, table_of
from millgate.demos.stage import DemoStage, perform, within
from millgate.demos.users import Mix, poisson_wishes

MIX = Mix(mean_prompt_tokens=300.0, mean_output_tokens=100.0, most_prompt_tokens=1500, most_output_tokens=400)
MAX_TOKENS = MIX.most_output_tokens
MOST_ASKED_PER_S = 400.0
"""What two cores carry, with users, gate and provider on them."""
_OF_ANTHROPIC = (QuotaKind.ITPM, QuotaKind.OTPM)


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """What `lab demo provider` may be told; the first of `limits` binds, `offered` is a multiple of it."""

    limits: tuple[tuple[str, int], ...] = (("rpm", 600),)
    output: str = OutputCharge.MAX_TOKENS
    offered: float = 10.0
    duration_s: float = 60.0
    warmup_s: float = 60.0
    used_share: float = 0.5
    seed: int = 1
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot run, naming the option."""
        for kind, amount in self.limits:
            if kind not in tuple(QuotaKind):
                raise ValueError(f"limits: must be one of {', '.join(QuotaKind)}, got {kind!r}")
            within(f"limits.{kind}", amount, 1, 10**9)
        if not self.limits or len(dict(self.limits)) < len(self.limits):
            raise ValueError("limits: give at least one, each kind once")
        if self.output not in tuple(OutputCharge):
            raise ValueError(f"output: must be one of {', '.join(OutputCharge)}, got {self.output!r}")
        within("offered", self.offered, 0.1, 100.0)
        within("duration_s", self.duration_s, 1.0, 3600.0)
        within("warmup_s", self.warmup_s, 0.0, 3600.0)
        within("used_share", self.used_share, 0.0, 1.0)
        within("offered x limit, requests a second", self.asked_per_s, 0.01, MOST_ASKED_PER_S)

    @property
    def setup(self) -> ProviderSetup:
        """The provider's account."""
        return ProviderSetup(self.limits, self.output, self.used_share)

    @property
    def path(self) -> str:
        """Where users ask: Anthropic's path for limits that only it has, else OpenAI's."""
        return MESSAGES_PATH if self.limits[0][0] in _OF_ANTHROPIC else CHAT_PATH

    @property
    def asked_per_s(self) -> float:
        """How many requests a second are offered."""
        binding = self.setup.quota_limits()[0]
        return self.offered * binding.rate_per_s / _usual_amount(binding.kind, binding.output)


class Counted(NamedTuple):
    """One run after its warm-up: what the provider counted, and what the users met."""

    binding: str
    sent: int
    refused: dict[str, int]
    used_share: float
    books: UserAccounts

    @property
    def refused_share(self) -> float:
        """The share of what was sent that the provider sent back."""
        return share(sum(self.refused.values()), self.sent)

    @property
    def kept_share(self) -> float | None:
        """The share of hints that held for users that returned on time; None where no user did."""
        return self.books.kept / self.books.promised if self.books.promised else None


def run(options: ProviderOptions) -> int:
    """Run the demo and print its table; 0 when it ran, 1 when a process failed, 130 after Ctrl-C."""
    show = Show(as_json=options.json)

    def play(_stage: DemoStage) -> None:
        with ProviderStage() as stage:
            _show_result(show, options, measure(options, stage, show))

    return perform(show, play)


def measure(options: ProviderOptions, stage: ProviderStage, show: Show) -> Counted:
    """Let users ask through a gate before the provider, and return what was counted after the warm-up."""
    provider = stage.start_provider(options.setup)
    gate = stage.start_account_gate(provider, options.setup)
    whole_s = options.warmup_s + options.duration_s
    wishes = list(poisson_wishes(MIX, rate_per_s=options.asked_per_s, duration_s=whole_s, seed=options.seed))
    if not wishes:
        raise ChildError("no user asks in that time: more --offered, or a longer run (--for)")
    books, seen = UserAccounts(), dict[str, Any]()
    with show.progress("users answered or refused", len(wishes)) as advance:
        asyncio.run(
            ask_all(
                gate.address,
                options.path,
                wishes,
                books,
                warmup_s=options.warmup_s,
                max_tokens=MAX_TOKENS,
                at_warm=provider.count_anew,
                at_end=lambda: seen.update(provider.counts()),
                on_story=lambda _: advance(),
            )
        )
    binding = options.limits[0][0]
    return Counted(binding, seen["asked"], seen["refused"], seen["used"][binding], books)


def _usual_amount(kind: QuotaKind, output: OutputCharge) -> float:
    """Return what a request of the mix takes of such a limit."""
    if kind in {QuotaKind.RPM, QuotaKind.RPD}:
        return 1.0
    if kind is QuotaKind.ITPM:
        return MIX.mean_prompt_tokens
    if kind is QuotaKind.OTPM:
        return MIX.mean_output_tokens
    if output is OutputCharge.LARGER:
        return max(MIX.mean_prompt_tokens, float(MAX_TOKENS))
    return MIX.mean_prompt_tokens + MIX.mean_output_tokens


def _show_result(show: Show, options: ProviderOptions, result: Counted) -> None:
    limits = ", ".join(f"{amount:,} {kind.upper()}" for kind, amount in options.limits)
    books = result.books
    hints = sorted(books.hints)
    rows = [
        ("sent to the provider", f"{result.sent:,}"),
        ("refused there with 429", f"{counted(result.refused)} ({result.refused_share * 100:.2f} %)"),
        (f"used of {result.binding.upper()}", percent(result.used_share)),
        ("answered to users", f"{books.answered:,}"),
        ("refused to users", counted(dict(books.refusals))),
        ("hints", f"{seconds(hints[0])} to {seconds(hints[-1])}" if hints else "-"),
        ("hints that held", "-" if result.kept_share is None else percent(result.kept_share)),
    ]
    title = (
        f"Provider: {limits}, output {options.output}, {options.offered:g}x offered for {options.duration_s:g} s "
        f"after {options.warmup_s:g} s"
    )
    notes = (
        "Sent, refused and used are the provider's own counters after the warm-up.",
        f"Users try {TRIES} times, come back when told, and send max_tokens {MAX_TOKENS}.",
        "A hint held when the user that came back at its time was answered.",
    )
    show.result(table_of(title, ("", "measured"), rows), _record(options, result), notes)


def _record(options: ProviderOptions, result: Counted) -> dict[str, Any]:
    books = result.books
    return {
        "demo": "provider",
        "options": {**asdict(options), "limits": dict(options.limits)},
        "sent": result.sent,
        "refused": result.refused,
        "refused_share": round(result.refused_share, 6),
        "used_share": round(result.used_share, 6),
        "answered": books.answered,
        "refusals": dict(books.refusals),
        "promised": books.promised,
        "kept_share": None if result.kept_share is None else round(result.kept_share, 4),
    }
