"""A configuration becomes settings, and every number that nobody gave says why it is what it is."""

from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from millgate.config.lanes import LaneConfig
from millgate.config.load import load_config
from millgate.config.overrides import from_assignment, override
from millgate.config.problems import ConfigError
from millgate.config.schema import Config, EngineConfig
from millgate.core.settings import ServicePrior
from millgate.core.words import DeadlineFrom, IgnoresHangups, LaneTakes
from millgate.engine.profile import find_profile, scaled
from millgate.wiring import choices
from millgate.wiring.chosen import EngineFacts, choose_max_inflight
from millgate.wiring.settings import Built, build_settings

URL = "http://127.0.0.1:8000"


def config(engine: dict[str, Any] | None = None, **rest: Any) -> Config:
    return Config.model_validate({"engines": [{"url": URL, "name": "gpu", **(engine or {})}], **rest})


def why(built: Built, name: str) -> tuple[str, str]:
    """Return the value and the reason of one choice."""
    return next((choice.value, choice.why) for choice in built.choices if choice.name == name)


def test_an_engine_that_tells_nothing_gets_256_streams_and_no_kv_meter() -> None:
    built = build_settings(config())

    engine = built.settings.engines[0]
    assert (engine.max_inflight, engine.kv_tokens, engine.prefill_tokens) == (256, None, 16_384)
    assert why(built, "gpu max_inflight") == ("256", "default: the engine does not tell its KV tokens")
    assert why(built, "gpu kv_tokens") == ("off", "the engine does not tell its KV tokens")


def test_an_engine_that_tells_its_kv_tokens_gets_both_meters_from_them() -> None:
    built = build_settings(config(), {"gpu": EngineFacts(kv_tokens=420_659)})

    engine = built.settings.engines[0]
    assert (engine.max_inflight, engine.kv_tokens) == (210, 378_593)
    assert why(built, "gpu max_inflight") == (
        "210",
        "420,659 KV tokens / 2,000 tokens per request, within 4..256",
    )
    assert why(built, "gpu kv_tokens") == ("378,593", "0.9 x the 420,659 KV tokens that the engine holds")


@pytest.mark.parametrize(
    ("engine", "is_told"),
    [({"profile": "llama3-8b_h100_tp1"}, True), ({"prior": {"tpot_base": "1ms"}}, False), ({}, False)],
)
def test_a_pace_that_a_lone_stream_does_not_keep_is_told_where_the_speed_is_known(
    engine: dict[str, Any], is_told: bool
) -> None:
    built = build_settings(config(engine, lanes=[{"name": "chat", "tpot_slo": "2ms"}]))

    said = [choice.why for choice in built.choices if choice.name == "gpu limit"]
    told = "no answer keeps a TPOT of 2ms: a lone stream takes 6.4ms, as its profile or prior has it"
    assert said == ([told] if is_told else [])


@pytest.mark.parametrize(
    ("engine", "limit"),
    [({"max_inflight": 64, "limit": {"kind": "fixed"}}, "64"), ({"max_inflight": 2}, "2"), ({}, "4")],
)
def test_the_limit_that_is_told_for_a_pace_that_is_not_kept_is_the_one_in_force(
    engine: dict[str, Any], limit: str
) -> None:
    """The banner said 4 of a limit that does not move, and of one that is never above 2."""
    fast = {"profile": "llama3-8b_h100_tp1", **engine}
    built = build_settings(config(fast, lanes=[{"name": "chat", "tpot_slo": "2ms"}]))

    assert [choice.value for choice in built.choices if choice.name == "gpu limit"] == [limit]


@given(st.integers(min_value=1, max_value=10**8))
def test_the_cap_found_from_kv_tokens_stays_within_4_and_256(kv_tokens: int) -> None:
    streams, _ = choose_max_inflight(EngineConfig(url=URL, name="gpu"), EngineFacts(kv_tokens), None)

    assert streams == min(256, max(4, kv_tokens // 2000))


def test_what_was_given_wins_and_its_giver_is_named() -> None:
    flags = [
        from_assignment(f"engines.0.url={URL}"),
        override("engines.*.max_inflight", "8", "--max-inflight"),
    ]
    loaded = load_config(None, {"MILLGATE_ENGINES__0__KV_TOKENS": "9k"}, flags)

    built = build_settings(loaded.config, {"127.0.0.1:8000": EngineFacts(420_659)}, loaded.places)

    engine = built.settings.engines[0]
    assert (engine.max_inflight, engine.kv_tokens) == (8, 9000)
    assert why(built, "127.0.0.1:8000 max_inflight") == ("8", "--max-inflight")
    assert why(built, "127.0.0.1:8000 kv_tokens") == ("9,000", "MILLGATE_ENGINES__0__KV_TOKENS")


def test_with_flags_alone_interactive_has_its_deadline_from_the_first_attempt() -> None:
    lane = build_settings(config()).settings.lanes[0]

    assert (lane.name, lane.ttft_slo_s, lane.tpot_slo_s, lane.deadline_s) == ("interactive", 10.0, None, 10.0)
    assert (lane.deadline_from, lane.order, lane.max_queue) == (
        DeadlineFrom.FIRST_ATTEMPT,
        "short_first",
        None,
    )


@pytest.mark.parametrize(
    ("ttft_slo", "long_over_s", "batch_over_s", "patient_s"),
    [(None, 5.0, 10.0, 60.0), ("2s", 1.0, 2.0, 60.0), ("30s", 15.0, 30.0, 180.0)],
)
def test_three_lanes_without_configuration_follow_the_objective_of_the_first(
    ttft_slo: str | None, long_over_s: float, batch_over_s: float, patient_s: float
) -> None:
    flags = [
        override("engines.0.url", URL, "--upstream"),
        override("lanes.0.ttft_slo", ttft_slo, "--ttft-slo"),
    ]

    first, long, batch, agents = build_settings(load_config(None, {}, flags).config).settings.lanes

    assert (first.name, first.takes, first.over_s) == ("interactive", None, 0.0)
    assert (long.name, long.takes, long.over_s) == ("long_context", LaneTakes.LONG_PROMPTS, long_over_s)
    assert (batch.name, batch.takes, batch.over_s) == ("throughput", LaneTakes.BATCH, batch_over_s)
    assert {long.ttft_slo_s, long.deadline_s, batch.ttft_slo_s, batch.deadline_s} == {patient_s}
    assert (agents.name, agents.takes, agents.share) == ("agents", LaneTakes.AGENTS, first.share / 8)
    assert (agents.ttft_slo_s, agents.deadline_s) == (2 * patient_s, 2 * patient_s)
    assert not any(lane.headroom or lane.band for lane in (first, long, batch, agents)), (
        "nothing is kept idle"
    )


def test_lanes_of_a_file_are_as_configured_also_where_they_have_the_names_of_the_default_ones() -> None:
    lanes = [{"name": "interactive"}, {"name": "long_context"}, {"name": "throughput"}]

    built = build_settings(config(lanes=lanes)).settings.lanes

    assert [(lane.takes, lane.ttft_slo_s, lane.share) for lane in built] == [(None, 10.0, 1.0)] * 3


def test_a_lane_that_takes_requests_says_which() -> None:
    built = build_settings(config())

    assert why(built, "lane long_context")[1].startswith(
        "default; takes prompts that an idle engine reads for more than 5s;"
    )
    assert "not streamed and lasts more than 10s" in why(built, "lane throughput")[1]
    assert "takes requests of coding agents" in why(built, "lane agents")[1]


def test_other_lanes_count_their_deadline_from_each_attempt() -> None:
    lanes = [{"name": "interactive"}, {"name": "batch"}, {"name": "own", "deadline_from": "first_attempt"}]

    built = build_settings(config(lanes=lanes)).settings.lanes

    assert [lane.deadline_from.value for lane in built] == ["first_attempt", "attempt", "first_attempt"]


def test_a_lane_keeps_every_number_that_it_was_given() -> None:
    given_lane = {"name": "chat", "ttft_slo": "2s", "tpot_slo": "50ms", "deadline": "4s", "order": "deadline"}
    bounds = {"max_queue": 5, "max_queue_tokens": "9k", "max_queue_bytes": "1MB", "max_wait": "3s"}

    lane = build_settings(config(lanes=[given_lane | bounds])).settings.lanes[0]

    assert (lane.ttft_slo_s, lane.tpot_slo_s, lane.deadline_s, lane.order) == (2.0, 0.05, 4.0, "deadline")
    assert (lane.max_queue, lane.max_queue_tokens, lane.max_queue_bytes, lane.max_wait_s) == (
        5,
        9000,
        1_000_000,
        3.0,
    )


def test_a_lane_names_the_quantiles_of_its_objectives_and_the_short_form_means_p95() -> None:
    named = {"name": "chat", "ttft_slo": {"p99": "2s"}, "tpot_slo": "p99.9:50ms"}

    built = build_settings(config(lanes=[named, {"name": "short", "tpot_slo": "60ms"}]))
    chat, short = built.settings.lanes

    assert (chat.ttft_slo_s, chat.deadline_s, chat.ttft_share) == (2.0, 2.0, 0.99)
    assert (chat.tpot_slo_s, chat.tpot_share, chat.target_share) == (0.05, 0.999, 0.99)
    assert (short.ttft_share, short.tpot_share, short.target_share) == (0.95, 0.95, 0.95)
    assert why(built, "lane chat")[0] == "ttft_slo p99:2s"


@pytest.mark.parametrize(
    ("slos", "own", "slo_s", "share"),
    [
        (["50ms"], None, 0.05, 0.95),
        ([{"p95": "50ms"}], None, 0.05, 0.95),
        (["50ms", {"p99": "60ms"}], None, 0.05, 0.95),
        (["50ms", {"p99": "50ms"}, {"p50": "50ms"}], None, 0.05, 0.99),
        ([{"p50": "40ms"}, "50ms"], None, 0.04, 0.5),
        (["50ms"], {"p75": "80ms"}, 0.08, 0.75),
    ],
)
def test_a_limit_steers_the_quantile_of_the_shortest_promise_or_its_own(
    slos: list[object], own: object, slo_s: float, share: float
) -> None:
    lanes = [{"name": f"lane-{index}", "tpot_slo": slo} for index, slo in enumerate(slos)]
    engine = {} if own is None else {"limit": {"tpot_slo": own}}

    limit = build_settings(config(engine, lanes=lanes)).settings.engines[0].limit

    assert (limit.kind, limit.tpot_slo_s, limit.tpot_share) == ("slo_gradient", slo_s, share)


@pytest.mark.parametrize(
    ("max_queue", "words"),
    [(None, "what can be served by then"), (7, "at most 7"), (0, "nothing: run now or refuse")],
)
def test_a_lane_says_what_may_wait(max_queue: int | None, words: str) -> None:
    built = build_settings(config(lanes=[{"name": "chat", "ttft_slo": "2s", "max_queue": max_queue}]))

    assert why(built, "lane chat") == ("ttft_slo 2s", f"default; queued: {words}")


def test_an_engine_keeps_its_words() -> None:
    engine = config({"ignores_hangups": "yes", "models": ["a", "b"], "prefill_tokens": "4k"})

    settings = build_settings(engine).settings.engines[0]

    assert (settings.ignores_hangups, settings.models, settings.prefill_tokens) == (
        IgnoresHangups.YES,
        ("a", "b"),
        4000,
    )


def test_an_engine_that_drains_takes_nothing_from_the_start() -> None:
    engines = [{"url": "http://a:1", "drain": True}, {"url": "http://b:1"}]

    built = build_settings(Config.model_validate({"engines": engines})).settings.engines

    assert [engine.is_up for engine in built] == [False, True]


def test_where_clients_keys_stop_at_the_gate_no_client_is_at_fault_for_the_key_of_an_engine() -> None:
    """So five 401 in a row open the breaker of a provider's account, with `api_key_env` and without."""
    tenants = [{"name": "a", "keys": ["0" * 64]}]
    cases: list[tuple[dict[str, Any], bool]] = [({}, False), ({"tenants": tenants}, True)]
    for rest, own_key in cases:
        (engine,) = build_settings(config(**rest)).settings.engines
        assert engine.own_key is own_key


def test_speed_comes_from_own_numbers_or_a_profile_or_the_default() -> None:
    prior = {"ttft_base": "1s", "ttft_per_token": "2ms", "tpot_base": "30ms", "tpot_per_stream": "4ms"}

    own = build_settings(config({"prior": prior})).settings.engines[0].prior
    profiled = build_settings(config({"profile": "demo", "time_scale": 4})).settings.engines[0].prior

    assert own == ServicePrior(1.0, 0.002, 0.03, 0.004)
    assert profiled == scaled(find_profile("demo"), 4.0).prior()
    assert build_settings(config()).settings.engines[0].prior == ServicePrior()


def test_an_unknown_profile_is_refused_by_place_and_the_known_ones_are_named() -> None:
    loaded = load_config(None, {}, map(from_assignment, [f"engines.0.url={URL}", "engines.0.profile=warp"]))

    with pytest.raises(
        ConfigError, match=r"--set engines\.0\.profile: engines\[0\]\.profile: 'warp' is not one of .*demo"
    ):
        build_settings(loaded.config, None, loaded.places)


def test_the_orders_that_a_configuration_may_name_are_those_that_can_be_built() -> None:
    assert set(get_args(get_args(LaneConfig.model_fields["order"].annotation)[0])) == set(choices.ORDERS)


def test_the_example_names_a_model_that_an_engine_has() -> None:
    assert build_settings(config()).example_model == "any"
    facts = {"gpu": EngineFacts(model="told")}
    assert build_settings(config(), facts).example_model == "told"
    assert build_settings(config({"models": ["given", "other"]}), facts).example_model == "given"


@pytest.mark.parametrize(
    ("rest", "asked", "meant"),
    [
        ({}, "auto", IgnoresHangups.AUTO),
        ({"workers": 2}, "auto", IgnoresHangups.NO),
        ({"workers": 2}, "yes", IgnoresHangups.YES),
        ({"workers": 2}, "whole", IgnoresHangups.WHOLE),
        ({"cluster": {"store": "redis://store:6379"}}, "auto", IgnoresHangups.NO),
    ],
)
def test_gauges_that_count_the_work_of_others_tell_nothing_of_hangups(
    rest: dict[str, Any], asked: str, meant: IgnoresHangups
) -> None:
    assert (
        build_settings(config({"ignores_hangups": asked}, **rest)).settings.engines[0].ignores_hangups
        is meant
    )
