"""Quotas and accounts in a configuration: what is read, and what is refused with the setting's name."""

from typing import Any

import pytest
from pydantic import ValidationError

from millgate.config.quotas import AccountConfig, QuotaConfig


def complaint(section: type[QuotaConfig | AccountConfig], **values: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        section.model_validate(values)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in refused.value.errors())


def test_a_quota_is_a_name_a_scope_and_limits() -> None:
    quota = QuotaConfig.model_validate(
        {"name": "fair", "each": ["tenant"], "lane": "interactive", "rpm": 60, "tpm": "90k", "burst": "10s"}
    )

    assert (quota.rpm, quota.tpm, quota.itpm, quota.burst) == (60, 90_000, None, 10.0)
    assert (quota.each, quota.lane, quota.tenant, quota.output) == (
        ("tenant",),
        "interactive",
        None,
        "expected",
    )


def test_an_account_charges_by_max_tokens_unless_told_otherwise() -> None:
    assert AccountConfig.model_validate({"otpm": "8k"}).output == "max_tokens"
    assert AccountConfig.model_validate({"tpm": "30k", "output": "larger"}).output == "larger"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "sets no limit: give at least one of rpm, rpd, tpm, tpd, itpm, otpm"),
        ({"rpm": 0}, "rpm: Input should be greater than or equal to 1"),
        ({"rpm": 60, "burst": "0s"}, "burst: Input should be greater than 0"),
        ({"rpm": 60, "burst": "25h"}, "burst: Input should be less than or equal to 86400"),
        ({"tmp": 60}, "tmp: Extra inputs are not permitted"),
        (
            {"rpm": 60, "tenant": "ann", "each": ["tenant"]},
            "`tenant` names one and `each` asks for all of them",
        ),
        ({"rpm": 60, "each": ["user"]}, "each.0: Input should be 'tenant', 'model' or 'lane'"),
        ({"rpm": 60, "output": "larger"}, "output: Input should be 'expected', 'max_tokens' or 'produced'"),
    ],
)
def test_a_quota_that_means_nothing_is_refused(values: dict[str, Any], words: str) -> None:
    assert words in complaint(QuotaConfig, name="q", **values)


def test_an_account_has_no_tenants() -> None:
    assert "tenant: Extra inputs are not permitted" in complaint(AccountConfig, rpm=1, tenant="ann")
