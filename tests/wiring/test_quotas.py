"""From configured quotas and accounts to the core's rules."""

from millgate.config.quotas import AccountConfig, QuotaConfig
from millgate.core.settings import QuotaLimit, QuotaRule
from millgate.core.words import OutputCharge, QuotaKind
from millgate.wiring.settings import account_settings, quota_rules


def test_each_limit_of_a_quota_is_a_rule_of_its_own() -> None:
    quota = QuotaConfig.model_validate(
        {"name": "fair", "each": ["tenant"], "lane": "bulk", "rpm": 60, "tpm": "90k", "burst": "10s"}
    )

    assert quota_rules((quota,)) == (
        QuotaRule("fair.rpm", QuotaLimit(QuotaKind.RPM, 60, 10.0), lane="bulk", each=("tenant",)),
        QuotaRule("fair.tpm", QuotaLimit(QuotaKind.TPM, 90_000, 10.0), lane="bulk", each=("tenant",)),
    )


def test_an_account_is_its_limits_and_none_is_none() -> None:
    account = AccountConfig.model_validate({"otpm": "8k", "output": "produced", "count_cached": False})

    settings = account_settings(account)

    assert settings is not None
    assert settings.limits == (
        QuotaLimit(QuotaKind.OTPM, 8_000, None, OutputCharge.PRODUCED, count_cached=False),
    )
    assert account_settings(None) is None
