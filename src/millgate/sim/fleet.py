"""Engines of a configuration, simulated: each configured engine gets a station with its profile and its manners."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millgate.config.schema import Config, EngineConfig
from millgate.core.settings import EngineSettings, LaneSettings, LimitSettings, Settings
from millgate.core.words import KvTransfer
from millgate.engine.profile import EngineProfile, find_profile, scaled
from millgate.sim.engines.batched import BatchedStation
from millgate.sim.engines.handoffs import LinkSpeed, PromptTransfers
from millgate.sim.engines.troubles import EngineTrouble, schedule
from millgate.sim.jobs import PREFIX_UNIT_TOKENS
from millgate.sim.randomness import Streams
from millgate.sim.world import World
from millgate.wiring.chosen import MEAN_TOKENS_PER_REQUEST, MOST_INFLIGHT, EngineFacts
from millgate.wiring.settings import build_settings

# vLLM lets go of an aborted request within 0.3 s; half of that is a usual time.
USUAL_ABORT_LAG_S = 0.15
_STEP_TOKENS = 8_192  # vLLM's `max_num_batched_tokens` on a server's GPU


@dataclass(frozen=True, slots=True)
class EngineManners:
    """How an engine behaves beyond its speed."""

    abort_lag_s: float = USUAL_ABORT_LAG_S
    ignores_hangups: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """Settings for a governor and, by engine name, what stands behind them; with or without prefix caches.

    Requests for adapters are served as any other. Prompts go over the `link` from engines that read them to those that
    decode, but for `links`, by these two engines.
    """

    settings: Settings
    profiles: Mapping[str, EngineProfile]
    prefix_caching: bool = False
    link: LinkSpeed = field(default_factory=LinkSpeed)
    links: Mapping[tuple[str, str], LinkSpeed] = field(default_factory=dict)

    def populate(
        self,
        world: World,
        streams: Streams,
        manners: Mapping[str, EngineManners] | EngineManners = EngineManners(),
        troubles: Iterable[EngineTrouble] = (),
    ) -> None:
        """Put every engine into the world, and their troubles onto its loop."""
        troubles = list(troubles)
        followed = _followed(self.settings)
        unit_tokens = PREFIX_UNIT_TOKENS if self.prefix_caching else 0
        readers = {engine.name for engine in self.settings.engines if engine.only_reads}
        paired = {each.name for each in self.settings.engines if each.kv_transfer is KvTransfer.SGLANG}
        post, links = world.driver.post, self.links
        handoffs = world.handoffs = (
            PromptTransfers(world.loop, post, self.link, links, world.failed, paired) if readers else None
        )
        for number, (name, profile) in enumerate(self.profiles.items()):
            own = manners if isinstance(manners, EngineManners) else manners.get(name, EngineManners())
            listener = world if handoffs is None or name not in readers else handoffs
            dice = streams.draws("refusals", lambda dice, count: dice.random(count), number)
            station = BatchedStation(
                name,
                world.loop,
                listener,
                profile.step_model(),
                replace(profile.limits(), prefix_unit_tokens=unit_tokens),
                abort_lag_s=own.abort_lag_s,
                ignores_hangups=own.ignores_hangups,
                dice=dice,
            )
            if handoffs is not None:
                handoffs.stations[name] = station
            world.add_station(station, followed=name in followed)
            for trouble in troubles:
                if trouble.engine == name:
                    schedule(trouble, station, profile, world.loop, post)


def _followed(settings: Settings) -> frozenset[str]:
    """Return the engines about which something is decided by how far their streams have come."""
    if any(rule.limit.charges_as_made for rule in settings.quotas):
        return frozenset(engine.name for engine in settings.engines)
    return frozenset(
        engine.name
        for engine in settings.engines
        if engine.limit.kind != "fixed" or engine.account is not None
    )


def configured_fleet(config: Config, default_profile: str, *, prefix_caching: bool = False) -> SimulatedFleet:
    """Return the fleet of a gateway's configuration: the settings that `millgate serve` would run with.

    Engines tell their KV tokens as real ones do; one without a profile of its own has the speed of its `prior`, else the default.
    """
    profiles = {engine.name: _stands_behind(engine, default_profile) for engine in config.engines}
    facts = {name: EngineFacts(kv_tokens=profile.kv_tokens) for name, profile in profiles.items()}
    return SimulatedFleet(build_settings(config, facts).settings, profiles, prefix_caching)


def _stands_behind(engine: EngineConfig, default_profile: str) -> EngineProfile:
    """Return an engine of its profile, or one as fast as its `prior` says with the memory and the batch that its limits name.

    A prompt alone waits for no step, so half of one is taken off. Unknown memory holds as many usual requests as may run.
    """
    prior, most = engine.prior, engine.max_inflight or MOST_INFLIGHT
    if engine.profile or prior is None:
        return scaled(find_profile(engine.profile or default_profile), engine.time_scale)
    step_ms, base_ms, token_ms = 1e3 * prior.tpot_base, 1e3 * prior.ttft_base, 1e3 * prior.ttft_per_token
    prefill = (0.0, max(0.0, base_ms - step_ms / 2), token_ms, 0.0)
    decode = (step_ms, 1e3 * prior.tpot_per_stream, 0.0, 0.0)
    kv_tokens = engine.kv_tokens or MEAN_TOKENS_PER_REQUEST * most
    return EngineProfile(engine.name, "prior", *prefill, *decode, kv_tokens, most, max(_STEP_TOKENS, most))


def uniform_fleet(
    profile: EngineProfile,
    engines: int,
    lanes: Sequence[LaneSettings],
    *,
    max_inflight: int | None = None,
    limit: LimitSettings | None = None,
) -> SimulatedFleet:
    """Return equal engines of one profile behind a gate with these lanes; the cap is the profile's batch, and the limit that cap where none is given."""
    names = [f"engine-{number:02d}" for number in range(engines)]
    settings = tuple(
        EngineSettings(
            name=name,
            max_inflight=max_inflight or profile.max_num_seqs,
            kv_tokens=int(0.9 * profile.kv_tokens),
            limit=limit or LimitSettings(),
            prior=profile.prior(),
        )
        for name in names
    )
    return SimulatedFleet(Settings(tuple(lanes), settings), dict.fromkeys(names, profile))
