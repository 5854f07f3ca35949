"""From a configuration to the core's settings: the same function for the gateway and for the simulator.

Nothing is guessed silently: every number that the configuration leaves open comes back as a Choice with its reason.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

from millgate.config.lanes import LaneConfig
from millgate.config.problems import ConfigError, Problem, SettingPath, ValueOrigin
from millgate.config.quotas import KINDS, AccountConfig, QuotaConfig, RatesConfig
from millgate.config.schema import Config, EngineConfig
from millgate.config.units import Objective, format_duration, format_objective
from millgate.core.settings import (
    TARGET_SHARE,
    AccountSettings,
    EngineSettings,
    Labels,
    LaneSettings,
    LimitKind,
    LimitSettings,
    QuotaLimit,
    QuotaRule,
    ServicePrior,
    Settings,
    TenantSettings,
)
from millgate.core.words import (
    DeadlineFrom,
    IgnoresHangups,
    KvTransfer,
    LaneTakes,
    OutputCharge,
    QuotaKind,
    Role,
)
from millgate.wiring.chosen import (
    ChosenNumber,
    EngineFacts,
    choose_kv_tokens,
    choose_max_inflight,
    choose_prefill_tokens,
    origin,
)

_DEFAULT_LANE = "interactive"
LINE_LANE = "line"
"""Where jobs of the line door go; a lane of this name in the configuration takes its place."""
_OVERFLOW_AFTER = 0.2
"""Of a deadline: of people beside batch work that fills the other engines nine in ten are let in there by then (tests/core/governor/test_placement.py)."""


class Built(NamedTuple):
    """Settings for the core and, in the order of a banner, why each open number is what it is.

    `example_model` is one that may be asked for: as configured, or as an engine has told; "any" where neither says.
    """

    settings: Settings
    choices: tuple[ChosenNumber, ...]
    example_model: str = "any"


def build_settings(
    config: Config,
    facts: Mapping[str, EngineFacts] | None = None,
    places: Mapping[SettingPath, ValueOrigin] | None = None,
) -> Built:
    """Return the core's settings for this configuration.

    `facts` holds what the engines told of themselves, by engine name; `places` says where each setting came from
    (`Loaded.places`) and is only quoted in the reasons. Raises ConfigError for an unknown profile.
    """
    facts, places = facts or {}, places or {}
    engines, reasons = [], []
    # The tightest promise: the shortest time, of equal ones the one with the highest quantile.
    promised = [lane.tpot_slo for lane in config.lanes if lane.tpot_slo]
    tpot_slo = min(promised, key=lambda slo: (slo.time_s, -(slo.share or TARGET_SHARE)), default=None)
    for index, engine in enumerate(config.engines):
        told = facts.get(engine.name, EngineFacts())
        settings, why = _engine(engine, told, places, index, tpot_slo, config)
        alone = config.cluster is None and config.workers == 1
        engines.append(settings if alone else _among_others(settings))
        reasons += why
    for index, lane in enumerate(config.lanes):
        reasons.append(_lane_choice(lane, config.lanes[0], places, index))
    lanes = tuple(_lane(lane, config.lanes[0]) for lane in config.lanes)
    if config.line is not None and all(lane.name != LINE_LANE for lane in lanes):
        # Each attempt has its own deadline, and it queues only clients that are due.
        each, by_s = DeadlineFrom.ATTEMPT, config.line.deadline
        lanes += (LaneSettings(name=LINE_LANE, ttft_slo_s=by_s, deadline_s=by_s, deadline_from=each),)
    whole = Settings(
        lanes=lanes,
        engines=tuple(engines),
        max_appointments=config.retries.appointments,
        tenants=tuple(
            TenantSettings(each.name, each.weight, each.max_inflight)
            for each in config.tenants
            if each.weight != 1.0 or each.max_inflight is not None
        ),
        quotas=quota_rules(config.quotas),
        retry_budget=config.retries.budget,
        observe=config.mode == "observe",
        hard_cap=config.hard_cap,
    )
    return Built(whole, tuple(reasons), _example_model(config, facts))


def _example_model(config: Config, facts: Mapping[str, EngineFacts]) -> str:
    for engine in config.engines:
        told = facts.get(engine.name, EngineFacts()).model
        if engine.models or told:
            return engine.models[0] if engine.models else str(told)
    return "any"


def _engine(
    engine: EngineConfig,
    facts: EngineFacts,
    places: Mapping[SettingPath, ValueOrigin],
    index: int,
    tpot_slo: Objective | None,
    config: Config,
) -> tuple[EngineSettings, list[ChosenNumber]]:
    max_inflight, why_inflight = choose_max_inflight(
        engine, facts, origin(places, "engines", index, "max_inflight")
    )
    kv_tokens, why_kv = choose_kv_tokens(engine, facts, origin(places, "engines", index, "kv_tokens"))
    prefill_tokens, why_prefill = choose_prefill_tokens(
        engine, origin(places, "engines", index, "prefill_tokens")
    )
    settings = EngineSettings(
        name=engine.name,
        max_inflight=max_inflight,
        kv_tokens=kv_tokens,
        prefill_tokens=prefill_tokens,
        models=engine.models,
        adapters=engine.adapters,
        adapter_slots=engine.adapter_slots,
        adapter_load_s=engine.adapter_load,
        longest_answer=config.limits.longest_answer,
        ignores_hangups=IgnoresHangups(engine.ignores_hangups),
        abort_lag_s=engine.abort_lag,
        account=account_settings(engine.account),
        own_key=engine.api_key_env is not None or bool(config.tenants),  # whose keys stop at the gate
        limit=_limit(engine, tpot_slo),
        prior=_prior(engine, index, places),
        role=Role(engine.role),
        kv_lease_s=engine.kv_lease,
        labels=_labels(engine),
        kv_transfer=KvTransfer(engine.kv_transfer),
        overflow=engine.overflow,
        is_up=not engine.drain,
    )
    why = [why_inflight, why_kv, why_prefill, *_role_choice(settings, places, index)]
    if engine.profile is not None or engine.prior is not None:
        why += _pace_choice(settings)
    return settings, why


def _pace_choice(engine: EngineSettings) -> list[ChosenNumber]:
    """Say that no answer keeps the TPOT which the limit of streams is to keep, where a lone stream takes longer."""
    slo_s, alone_s = engine.limit.tpot_slo_s, engine.prior.tpot_base_s + engine.prior.tpot_per_stream_s
    if slo_s is None or alone_s <= slo_s:
        return []
    alone, most = format_duration(float(f"{alone_s:.2g}")), engine.max_inflight
    least = most if engine.limit.kind == "fixed" else min(most, engine.limit.minimum)
    why = f"no answer keeps a TPOT of {format_duration(slo_s)}: a lone stream takes {alone}, as its profile or prior has it"
    return [ChosenNumber(f"{engine.name} limit", str(least), why)]


def _labels(engine: EngineConfig) -> Labels:
    told = engine.labels
    return Labels(*[each or "" for each in (told.host, told.rack, told.zone, told.required)])


def _role_choice(
    engine: EngineSettings, places: Mapping[SettingPath, ValueOrigin], index: int
) -> list[ChosenNumber]:
    """Say which part of requests an engine takes, where that is not all of it."""
    if engine.role is Role.UNIFIED:
        return []
    given = origin(places, "engines", index, "role") or "given"
    what = "answers with prompts read by others, or whole requests where that costs less"
    if engine.kv_transfer is KvTransfer.SGLANG:
        what = f"{'reads prompts for others' if engine.only_reads else 'answers with prompts read by others'}, by SGLang's bootstrap"
    elif engine.only_reads:
        what = f"reads prompts for others and keeps each for {format_duration(engine.kv_lease_s)}"
    return [ChosenNumber(f"{engine.name} role", engine.role, f"{given}; {what}")]


def _among_others(engine: EngineSettings) -> EngineSettings:
    """Return the engine of a gate that shares it: its gauges count what other replicas run, so they tell nothing of hang-ups."""
    if engine.ignores_hangups is not IgnoresHangups.AUTO:
        return engine
    return replace(engine, ignores_hangups=IgnoresHangups.NO)


def _limit(engine: EngineConfig, tpot_slo: Objective | None) -> LimitSettings:
    """Return how the limit moves: pinned to the shortest TPOT that a lane promises, else by the engine's queue or not at all."""
    given = engine.limit
    slo = given.tpot_slo or tpot_slo
    is_given = engine.max_inflight is not None or engine.account is not None
    unpinned: LimitKind = "fixed" if is_given else "aimd"
    if engine.role == "prefill":
        return LimitSettings()  # it writes one token of each answer, which has no pace to keep
    return LimitSettings(
        kind=given.kind or (unpinned if slo is None else "slo_gradient"),
        tpot_slo_s=slo.time_s if slo else None,
        tpot_share=(slo.share if slo else None) or TARGET_SHARE,
        start=given.start,
        minimum=given.minimum,
    )


def _prior(engine: EngineConfig, index: int, places: Mapping[SettingPath, ValueOrigin]) -> ServicePrior:
    """Return what to believe of this engine's speed: its own numbers, its profile, or the core's default."""
    if engine.prior is not None:
        given = engine.prior
        return ServicePrior(
            ttft_base_s=given.ttft_base,
            ttft_per_token_s=given.ttft_per_token,
            tpot_base_s=given.tpot_base,
            tpot_per_stream_s=given.tpot_per_stream,
        )
    if engine.profile is None:
        return ServicePrior()
    try:
        from millgate.engine.profile import find_profile, scaled  # noqa: PLC0415 - with it comes the simulator's library

        return scaled(find_profile(engine.profile), engine.time_scale).prior()
    except ValueError as error:
        path = ("engines", index, "profile")
        raise ConfigError(Problem(places.get(path), path, str(error).removeprefix("profile: "))) from None


def _lane(lane: LaneConfig, first: LaneConfig) -> LaneSettings:
    ttft = lane.ttft_objective(first)
    deadline_s = ttft.time_s if lane.deadline is None else lane.deadline
    after = _OVERFLOW_AFTER * deadline_s if lane.overflow_after is None else lane.overflow_after
    from_first = lane.deadline_from or ("first_attempt" if lane.name == _DEFAULT_LANE else "attempt")
    return LaneSettings(
        name=lane.name,
        ttft_slo_s=ttft.time_s,
        tpot_slo_s=lane.tpot_slo.time_s if lane.tpot_slo else None,
        ttft_share=ttft.share or TARGET_SHARE,
        tpot_share=(lane.tpot_slo.share if lane.tpot_slo else None) or TARGET_SHARE,
        deadline_s=deadline_s,
        deadline_from=DeadlineFrom(from_first),
        order=lane.order or ("short_first" if lane.name == _DEFAULT_LANE else "arrival"),
        fair=lane.fair,
        max_overtakes=lane.max_overtakes,
        share=lane.share,
        headroom=lane.headroom,
        band=lane.band,
        prefill_per_s=lane.prefill_rate,
        window_s=lane.window,
        demote=lane.demote,
        clip_tokens=lane.clip,
        max_queue=lane.max_queue,
        max_queue_tokens=lane.max_queue_tokens,
        max_queue_bytes=lane.max_queue_bytes,
        max_wait_s=lane.max_wait,
        hold_due_s=lane.hold_due,
        overflow_after_s=inf if after == "never" else after,
        takes=None if lane.takes is None else LaneTakes(lane.takes),
        over_s=0.0 if lane.takes is None else lane.over_s(first),
    )


def _lane_choice(
    lane: LaneConfig, first: LaneConfig, places: Mapping[SettingPath, ValueOrigin], index: int
) -> ChosenNumber:
    """Say what decides in this lane: its time to the first token, which requests it takes, and what may wait."""
    ttft = format_objective(lane.ttft_objective(first))
    queue = "what can be served by then" if lane.max_queue is None else f"at most {lane.max_queue:,}"
    if lane.max_queue == 0:
        queue = "nothing: run now or refuse"
    given = origin(places, "lanes", index, "ttft_slo") or "default"
    return ChosenNumber(
        f"lane {lane.name}", f"ttft_slo {ttft}", f"{given}; {_taken(lane, first)}queued: {queue}"
    )


def _taken(lane: LaneConfig, first: LaneConfig) -> str:
    """Say which requests that name no lane are for this one; nothing of a lane that takes none."""
    if lane.takes is None:
        return ""
    if lane.takes == "agents":
        return "takes requests of coding agents; "
    over = format_duration(lane.over_s(first))
    if lane.takes == "long_prompts":
        return f"takes prompts that an idle engine reads for more than {over}; "
    return f"takes embeddings, and what is not streamed and lasts more than {over}; "


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


def with_lacking(settings: Settings, told: Container[str]) -> Settings:
    """Return settings in which the engines that have told their adapters, by name, are not asked for those of others."""
    every = frozenset(name for engine in settings.engines for name in engine.adapters)
    engines = tuple(
        replace(engine, lacks=every.difference(engine.adapters)) if engine.name in told else engine
        for engine in settings.engines
    )
    return replace(settings, engines=engines)
