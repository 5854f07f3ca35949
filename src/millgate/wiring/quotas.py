"""From configured quotas and accounts to the core's records; nothing is guessed."""

from collections.abc import Iterator

from millgate.config.quotas import KINDS, AccountConfig, QuotaConfig, RatesConfig
from millgate.core.settings import AccountSettings, QuotaLimit, QuotaRule
from millgate.core.words import OutputCharge, QuotaKind


def quota_rules(quotas: tuple[QuotaConfig, ...]) -> tuple[QuotaRule, ...]:
    """Return one rule for each limit of each quota, named `quota.kind` as refusals show it."""
    return tuple(
        QuotaRule(f"{each.name}.{limit.kind}", limit, each.tenant, each.model, each.lane, each.each)
        for each in quotas
        for limit in _limits(each, OutputCharge(each.output))
    )


def account_settings(account: AccountConfig | None) -> AccountSettings | None:
    """Return the limits of a provider's account; None where none is configured."""
    if account is None:
        return None
    return AccountSettings(tuple(_limits(account, OutputCharge(account.output))))


def _limits(rates: RatesConfig, output: OutputCharge) -> Iterator[QuotaLimit]:
    for kind in KINDS:
        amount = getattr(rates, kind)
        if amount is not None:
            yield QuotaLimit(QuotaKind(kind), amount, rates.burst, output, rates.count_cached)
