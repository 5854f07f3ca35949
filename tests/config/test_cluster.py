"""The section `cluster`: where the store is, what must be the same everywhere, and which secrets stay out of sight."""

import pytest

from millgate.config.document import Document
from millgate.config.load import Loaded, validated
from millgate.config.problems import ConfigError

_KEY = {"TICKETS": "ab" * 32}
_ENGINES = [{"url": "http://127.0.0.1:8000"}]


def _load(cluster: dict[str, object], environ: dict[str, str] | None = None, **more: object) -> Loaded:
    whole = {
        "engines": _ENGINES,
        "cluster": cluster,
        "retries": {"ticket_key_env": "TICKETS"},
    }
    return validated(Document({**whole, **more}, {}), _KEY | (environ or {}))


def test_a_cluster_has_a_store_a_name_and_times() -> None:
    loaded = _load({"store": "redis://cache:6379/3"})
    cluster = loaded.config.cluster
    assert cluster is not None
    assert loaded.store is not None
    assert loaded.store.url.get_secret_value() == "redis://cache:6379/3"
    assert (cluster.name, cluster.lease, cluster.renew_every, cluster.when_store_is_gone) == (
        "millgate",
        2.0,
        0.25,
        "share",
    )


def test_address_and_password_may_come_from_the_environment_and_are_shown_nowhere() -> None:
    environ = {"MILLGATE_REDIS_URL": "rediss://me:secret-1@cache:6380", "MILLGATE_REDIS_PASSWORD": "secret-2"}
    loaded = _load({}, environ)
    assert loaded.store is not None
    assert loaded.store.url.get_secret_value() == "rediss://me:secret-1@cache:6380"
    assert loaded.store.password is not None
    assert loaded.store.password.get_secret_value() == "secret-2"
    assert "secret-" not in repr(loaded) + str(loaded.config.model_dump())


@pytest.mark.parametrize(
    ("store", "complaint"),
    [
        ("redis://me:hush@cache:6379", "carries credentials"),
        ("http://cache:6379", "is not the address of a store"),
        ("redis+sentinel://cache:26379", "names no service"),
        ("redis:cache", "is not the address of a store"),
        ("redis://cache:6379?db=1", "carries a query"),
    ],
)
def test_what_is_no_address_is_refused_and_never_quoted(store: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        _load({"store": store})
    assert "hush" not in str(refused.value)


def test_a_cluster_without_a_store_says_which_variable_is_missing() -> None:
    with pytest.raises(ConfigError, match="MILLGATE_REDIS_URL is not the address of a store"):
        _load({})


def test_a_cluster_without_a_key_for_tickets_says_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match="openssl rand -hex 32") as refused:
        _load({"store": "redis://cache"}, retries={})
    assert "retries.ticket_key_env" in str(refused.value)


def test_a_renewal_that_hangs_is_given_up_before_the_lease_ends() -> None:
    """With `timeout: 1s` a single one that hung left its replica without a lease for a moment."""
    with pytest.raises(ConfigError, match=r"timeout \(1s\) is more than two fifths of lease \(2s\)"):
        _load({"store": "redis://cache", "timeout": "1s"})
    _load({"store": "redis://cache", "lease": "500ms", "renew_every": "100ms"})


def test_a_lease_lasts_for_four_renewals_at_least() -> None:
    with pytest.raises(ConfigError, match="more than a quarter of lease"):
        _load({"store": "redis://cache", "lease": "2s", "renew_every": "600ms"})
