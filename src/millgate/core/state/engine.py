"""One engine: its gate, its learned speed, its gauges, and its permits, until it has let go of the clients that have left."""

from math import inf
from typing import Final

from millgate.core.decisions import Leg
from millgate.core.events import EngineSeen
from millgate.core.lifecycle import State
from millgate.core.limits.build import build_limit
from millgate.core.limits.gate import FLOOR_SHARE, DrainRate, DrainReading, EngineGate
from millgate.core.limits.prefill_pace import Comings, Paced, PromptPaces
from millgate.core.limits.signal import Signal
from millgate.core.measure import OUTLIER_RATIO, Ewma
from millgate.core.routing.least_work import CostFloor
from millgate.core.settings import MINUTE_S, EngineSettings, ServicePrior
from millgate.core.sizing import USUAL_PROMPT_TOKENS
from millgate.core.sizing.output_length import PRIOR_OUTPUT_TOKENS
from millgate.core.sizing.service_demand import PermitTimes, PromptReading, ServiceTime
from millgate.core.state.provider import Provider
from millgate.core.words import IgnoresHangups


class Permit:
    """What an engine does for one attempt; absolute core seconds, tokens over all `answers`.

    `serial` is the order in which attempts were taken in. `prefill_ahead` and `expected_ttft_s` were foreseen at the
    admission, `foreseen_tokens` then or since. `due_at` is when time alone tells something: that a prompt is read, or
    that the engine has let go of a client that left at `gone_at`. `listed_end` is where `capacity_forecast` keeps it.
    Its times teach while it `is_timed`. Where it `is_held_back` by its client, how long it is out teaches, and nothing of how fast its engine writes. It was `sent_at`; until then another engine reads its prompt, and it `is_elsewhere`.
    `looked_at` and `looked_tokens` are how far its stream was when last looked at, `read_before` the prompt tokens that the
    engine had read by its first token.
    """

    def __init__(
        self,
        attempt: int,
        serial: int,
        streams: int,
        answers: int,
        admitted_at: float,
        prefill_ahead: float,
        expected_ttft_s: float,
        foreseen_tokens: int,
    ) -> None:
        self.attempt, self.serial = attempt, serial
        self.streams, self.answers = streams, answers
        self.state = State.PREFILL
        self.admitted_at = self.sent_at = self.looked_at = admitted_at
        self.is_elsewhere, self.is_timed, self.is_held_back = False, True, False
        self.prefill_ahead, self.expected_ttft_s = prefill_ahead, expected_ttft_s
        self.due_at = admitted_at + expected_ttft_s
        self.foreseen_tokens = foreseen_tokens
        self.output_seen = self.looked_tokens = self.read_before = 0
        self.first_token_at: float | None = None
        self.gone_at: float | None = None
        self.listed_end: float | None = None

    def unwatched(self) -> None:
        """When something came of it is unknown: its times teach nothing from now on."""
        self.is_timed = False

    def held_back(self) -> None:
        """Its client reads more slowly than its engine writes."""
        self.is_held_back = True

    def first_token(self, now: float) -> None:
        """The prompt has been read."""
        self.state = State.DECODE
        self.first_token_at = self.looked_at = now

    def is_away(self) -> None:
        """Another engine reads its prompt first."""
        self.is_elsewhere = True

    def is_sent(self, now: float) -> None:
        """It goes to its engine now."""
        self.is_elsewhere = False
        self.sent_at = now

    def reads_itself(self, prefill_ahead: float, expected_ttft_s: float) -> None:
        """Its engine reads the prompt after all, behind so many tokens; its first token is expected so long after it was sent."""
        self.prefill_ahead, self.expected_ttft_s = prefill_ahead, expected_ttft_s
        self.due_at = self.sent_at + expected_ttft_s

    def reads_after(self, tokens: int) -> None:
        """Note how many prompt tokens its engine had read by its first token."""
        self.read_before = tokens

    def grows(self, output_tokens: int, now: float) -> None:
        """Its stream has come this far."""
        self.output_seen = self.looked_tokens = output_tokens
        self.looked_at = now

    def answered(self, output_tokens: int) -> None:
        """Its answer is whole, and so long."""
        self.output_seen = output_tokens

    def began_unseen(self, now: float) -> float:
        """Return when its answer began; where that was never seen, when its prompt was believed to be read."""
        if self.first_token_at is not None:
            return self.first_token_at
        self.looked_at = min(now, self.admitted_at + self.expected_ttft_s)
        return self.looked_at

    def ended(self, now: float) -> None:
        """Its attempt has its outcome, and the engine may still be busy with it."""
        self.state = State.DEPARTING
        self.due_at = now

    def is_done(self, now: float) -> bool:
        """Return whether its engine has let go of a client that left, by time alone."""
        return self.state is State.DEPARTING and self.gone_at is not None and now >= self.due_at

    def released(self) -> None:
        """The engine is done with it."""
        self.state = State.OVER

    def foreseen_anew(self, output_tokens: int) -> None:
        """Expect so many tokens from now on."""
        self.foreseen_tokens = output_tokens

    def listed(self, end: float | None) -> None:
        """Note under which expected end the forecast keeps it; None while it does not."""
        self.listed_end = end


# An engine that has not let go after this many abort lags ignores hang-ups, until it lets go long before its answer's end.
_IGNORING_LAGS: Final = 3.0
# It lets go long before the end when this share of what was left of the answer has not passed. SGLang takes 2 s to abort a
# stream, and 4 s to see that the client of a whole answer has left (its `tokenizer_manager.py`).
_LETS_GO_SHARE: Final = 0.5
_IGNORING: Final = frozenset((IgnoresHangups.YES, IgnoresHangups.WHOLE))


class Hangups:
    """What is known of one engine: its abort `lag`, and whether hang-ups are `ignored`, of all answers or of whole ones, as configured or as learned."""

    def __init__(self, configured: IgnoresHangups, prior_lag_s: float) -> None:
        self.configured = configured
        self.ignored = configured in _IGNORING
        self.lag = Ewma(prior_lag_s, memory=20.0)

    def reconfigured(self, fresh: "Hangups", *, new_prior: bool) -> None:
        """Take these settings; what was learned stays where they say to learn, and the lag unless it is to begin with another one."""
        self.configured = fresh.configured
        if fresh.configured is not IgnoresHangups.AUTO:
            self.ignored = fresh.ignored
        if new_prior:
            self.lag = fresh.lag

    def departs_at(self, permit: Permit) -> float:
        """Return when the permit of a client that has left is expected to end: after the engine's abort lag.

        `due_at` is when the permit ends at the latest. Where a gauge will show that the engine has stopped, that is the
        whole rest of the answer, and is expected only of an engine that is known to ignore hang-ups.
        """
        if permit.gone_at is None or self.ignored:
            return permit.due_at
        return min(permit.due_at, permit.gone_at + self.lag.mean)

    def learn(self, permit: Permit, seen_at: float, *, ignoring: bool) -> None:
        """Learn from one reading of the gauge: how long the engine took to let go, or that it does not."""
        assert permit.gone_at is not None
        lag_s = seen_at - permit.gone_at
        patience_s = _IGNORING_LAGS * self.lag.mean
        auto = self.configured is IgnoresHangups.AUTO
        if ignoring:
            self.ignored = self.ignored or (auto and lag_s > patience_s)
        elif lag_s <= max(patience_s, _LETS_GO_SHARE * (permit.due_at - permit.gone_at)):
            self.lag.add(lag_s)
            self.ignored = self.ignored and not auto


class Silence:
    """Whether an engine has let the time of a prompt run out, and read none meanwhile; until its next first token it then gets one prompt at a time.

    It `lasts_s` as long as that prompt waited, a minute at most; 0 where the engine is not silent.
    """

    def __init__(self) -> None:
        self._read_at, self.lasts_s = -inf, 0.0

    def ends(self, now: float) -> None:
        """The engine has read a prompt."""
        self._read_at, self.lasts_s = now, 0.0

    def let_run_out(self, sent_at: float, now: float) -> None:
        """The time of a prompt that was sent then ran out before its first token."""
        if self._read_at < sent_at:
            self.lasts_s = min(MINUTE_S, max(self.lasts_s, now - sent_at))


# An engine without a profile: its speed is known only as far as it has been learned.
_UNKNOWN_SPEED: Final = ServicePrior()
# No work takes less of an engine: what would take no time at all is still work.
LEAST_WORK_S: Final = 1e-6
# A gauge older than this says nothing (polled once a second, three misses).
GAUGE_STALE_S: Final = 3.0


class Engine:
    """One engine; `permits` are out, `departing` those of them whose clients have left, in that order.

    Its work is foreseen by the TPOT `pace_s`; `longest_read` counts the tokens of the longest prompt that it is known to have read;
    `drain_read` is forgotten whenever work starts, reads its first token or ends. `position`, `is_priced` and `cost_floor` are `placement`'s, `number` is its name in the index of prefixes. One `on_trial` gets one request and `is_tried` then. A `retired` one lives until its last permit ends.
    """

    def __init__(self, settings: EngineSettings, now: float) -> None:
        self._take(settings)
        self.up = settings.is_up
        self.on_trial = self.is_tried = self.retired = self.is_priced = False
        limit = build_limit(settings.limit, settings.max_inflight, settings.prior)
        self.gate = EngineGate(limit, settings.kv_tokens, settings.prefill_tokens, settings.max_inflight)
        self.service = ServiceTime(settings.prior)
        self.reading = PromptReading(settings.prior.ttft_per_token_s, now)
        self.drain_read: DrainReading | None = None
        self.drain, self.permit_times = DrainRate(settings.max_inflight), PermitTimes()
        self.position, self.number = 0, 0
        self.cost_floor, self.silence = CostFloor(), Silence()
        self.longest_read = inf if settings.prior.certain else 0.0
        account = settings.account
        self.provider = None if account is None else Provider(account, now, own_key=settings.own_key)
        self.pace_s = self.service.tpot_s(settings.max_inflight)
        self.hangups = Hangups(settings.ignores_hangups, settings.abort_lag_s)
        self.seen: EngineSeen | None = None
        self.permits, self.departing = dict[int, Permit](), dict[int, Permit]()
        self.signal: Signal | None = (
            None if settings.limit.kind == "fixed" else Signal(now, settings.prior, settings.limit.tpot_share)
        )
        self.prompts = PromptPaces()
        self.work_prompt = Ewma(float(USUAL_PROMPT_TOKENS), prior_samples=0.0)
        self.work_output = Ewma(PRIOR_OUTPUT_TOKENS, prior_samples=0.0)
        self.work_read = Ewma(0.0, prior_samples=0.0)

    def _take(self, settings: EngineSettings) -> None:
        self.settings, self.only_reads = settings, settings.only_reads
        self.needs_reader = settings.needs_reader
        self._has_profile = settings.prior != _UNKNOWN_SPEED

    def reconfigured(self, fresh: "Engine") -> None:
        """Take the settings of this fresh engine, and of it what they build anew; what was learned stays."""
        old, new = self.settings, fresh.settings
        if (new.account, new.own_key) != (old.account, old.own_key):
            self.provider = fresh.provider
        self.hangups.reconfigured(fresh.hangups, new_prior=new.abort_lag_s != old.abort_lag_s)
        self.drain_read = None
        if new.limit != old.limit:
            self.signal = fresh.signal
        self.gate.reconfigured(fresh.gate, new_limit=new.limit != old.limit, most_streams=new.max_inflight)
        self._take(new)

    def paces_prompts(self, paced: Paced, comings: Comings, now: float) -> None:
        """Pace prompts of the lanes that are to be paced from now on."""
        self.prompts.reconfigured(paced, self.settings.prior, comings)
        if paced.protection is not None:
            self.signal = self.signal or Signal(now, self.settings.prior, self.settings.limit.tpot_share)

    def given_prompt(self, lane: str, prompt_tokens: int, lasts_s: float, now: float) -> None:
        """Take note of a prompt of this lane that it is to read, and of how long it is busy with it and its answer."""
        if self.prompts.is_on:
            self.prompts.given(lane, prompt_tokens, self.reads_within(prompt_tokens), now, lasts_s)

    def opens_at(self, lane: str, tokens: int, *, contended: bool = False, quiet_by: float = inf) -> float:
        """Return when such a prompt of this lane may be given; -inf where it is not paced."""
        at = self.prompts.opens_at(lane, contended=contended, quiet_by=quiet_by)
        if lane not in self.prompts.kept_waiting:
            return at
        return max(at, self.prompts.waits_until(lane, self.reads_within(tokens)[1], quiet_by))

    def reads_within(self, tokens: int) -> tuple[float, float]:
        """Return how long it reads such a prompt, and how long the first token of a short one behind it takes."""
        return self.service.reading_s(tokens), self.service.ttft_s(tokens) + self.service.ttft_s(0)

    def numbered(self, number: int) -> None:
        """Be this number in the index of prefixes."""
        self.number = number

    def named(self, *, retired: bool) -> None:
        """Take note of whether the configuration names it."""
        self.retired = retired

    def went_up(self, *, on_trial: bool) -> None:
        """It is said to be up: anew, so that one `on_trial` gets one request more."""
        self.on_trial, self.is_tried = on_trial, False

    def turned(self, *, up: bool) -> None:
        """It takes work from now on, or no longer."""
        self.up = up

    def placed(self, position: int) -> None:
        """Stand here among the engines that take work, without a price."""
        self.position, self.is_priced = position, False

    def priced(self, *, known: bool) -> None:
        """Take note of whether its price is known."""
        self.is_priced = known

    @property
    def limit(self) -> int:
        """The number of streams in force: of the limit, what this replica may have."""
        return self.gate.current()

    def unread_tokens(self, now: float) -> float:
        """Return the prompt tokens that it has yet to read."""
        return self.reading.unread(self.gate.unread_tokens, now)

    def expected_ttft_s(self, prompt_tokens: int, now: float) -> float:
        """Return the predicted time to first token of a prompt admitted now, behind what is not yet read."""
        return self.service.ttft_s(prompt_tokens + self.unread_tokens(now))

    def permit_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return how long a full engine's permit is out for such a request, at a price that does not move with load.

        By the profile, where there is one: streams x per_token x prompt + output x TPOT(streams), so that full streams do one second of work a second. Else by the engine's own time as learned, and what comes beside reading where nothing is written.
        """
        prior, streams = self.settings.prior, float(self.gate.stream_limit)
        if not self._has_profile:
            streams = self.drain.full_streams
            beside_s = 0.0 if output_tokens else self.service.ttft_s(0)
            return beside_s + streams * self.service.engine_s(prompt_tokens, output_tokens, streams)
        tpot_s = prior.tpot_base_s + prior.tpot_per_stream_s * streams
        return streams * prior.ttft_per_token_s * prompt_tokens + output_tokens * tpot_s

    def expected_service_s(self) -> float:
        """Return the expected time that one permit is out while the gate is full."""
        prompt_tokens, streams = self.work_prompt.mean, self.drain.full_streams
        behind_s = self.service.read_behind_s(prompt_tokens, self.work_read.mean, streams)
        return behind_s + self.service.service_s(prompt_tokens, self.work_output.mean, streams)

    def drains(self) -> DrainReading:
        """Return how this engine's gate empties while it is full; read anew when something has changed."""
        read = self.drain_read
        if read is None:
            # What keeps an account's work out is mostly the account: its full gate is seen too slow, never too fast.
            share = FLOOR_SHARE if self.provider is None else 1.0
            work_s = self.permit_s(self.work_prompt.mean, self.work_output.mean)
            read = self.drain.read(self.expected_service_s(), work_s, share)
            self.drain_read = read
        return read

    def foreseen_s(self, permit: Permit) -> float:
        """Return how long this permit was foreseen to be out."""
        return permit.expected_ttft_s + permit.foreseen_tokens / permit.answers * self.pace_s

    def expected_end(self, permit: Permit) -> float:
        """Return when this permit is expected to end, an absolute core time."""
        if permit.state is State.DEPARTING:
            return self.hangups.departs_at(permit)
        decode_s = permit.foreseen_tokens / permit.answers * self.pace_s
        if permit.first_token_at is None:
            return permit.sent_at + permit.expected_ttft_s + decode_s
        return permit.first_token_at + decode_s

    def starts(
        self, permit: Permit, leg: Leg, prompt_tokens: int, output_tokens: int, now: float, *, only_read: bool
    ) -> None:
        """Give this permit its leg; the caller has asked for room at this very instant."""
        gate, streams = self.gate, leg.streams
        self.permits[permit.attempt] = permit
        if not gate.prefill_tokens:
            self.reading.began(now)
        gate.take(permit.attempt, leg.kv_tokens, leg.prompt_tokens, streams)
        if self.signal is not None:
            self.signal.inflight(gate.streams)
        self.is_tried = self.on_trial
        self.work_prompt.add(prompt_tokens)
        most_tokens = OUTLIER_RATIO * max(PRIOR_OUTPUT_TOKENS, self.work_output.mean)
        self.work_output.add(min(output_tokens, most_tokens))
        # Streams of what is only read; nothing where all answers are written.
        if only_read or self.work_read.mean:
            self.work_read.add(streams if only_read else 0.0)
        self.drain_read = None

    def changed(self) -> None:
        """Work has started here, has read its first token or has ended: how the gate drains is read anew."""
        self.drain_read = None

    def became_full(self, now: float) -> bool:
        """Count the gate as full, as a request was kept out; return whether it was not yet counted so."""
        if self.drain.is_full or self.silence.lasts_s or not self.gate.streams:
            return False
        by_memory = self.gate.streams < self.limit and self.gate.kv_left() < usual_kv_tokens(self)
        self.drain.became_full(now, self.gate.streams, by_memory=by_memory)
        self.drain_read = None
        return True

    def first_token(self, permit: Permit, prompt_tokens: int, now: float) -> None:
        """The prompt has been read: learn how long it took, and give its share of the prefill meter back."""
        permit.first_token(now)
        service, ahead, took_s = self.service, permit.prefill_ahead, now - permit.sent_at
        if self.signal is not None and permit.is_timed:
            self.signal.first_token(took_s - permit.expected_ttft_s)
        if permit.is_timed:
            self.reading.erred(permit.expected_ttft_s, took_s)
            service.learn_ttft(prompt_tokens + ahead, took_s)
            self.reading.read(prompt_tokens, service.ttft_s(0), now)
        self.has_read(prompt_tokens + int(ahead), now)
        self.gate.prefilled(permit.attempt)
        permit.reads_after(service.has_read(prompt_tokens))

    def read_unseen(self, permit: Permit, prompt_tokens: int, now: float) -> None:
        """The prompt is believed to be read, once, as its answer will be seen only when it is whole."""
        if self.gate.prefilled(permit.attempt):
            self.reading.interrupted(now)
            self.service.has_read(prompt_tokens)

    def has_read(self, prompt_tokens: int, now: float) -> None:
        """Take note of a prompt that it has read."""
        self.longest_read = max(self.longest_read, prompt_tokens)
        self.silence.ends(now)

    def reads_pace(self) -> None:
        """Read the pace by which its work is foreseen anew."""
        self.pace_s = self.service.tpot_s(self.drain.full_streams)

    def left_by_client(self, permit: Permit, due_at: float, now: float) -> None:
        """The client of this permit has left; the engine is done with it by `due_at`, as far as is known."""
        permit.gone_at, permit.due_at = now, due_at
        self.departing[permit.attempt] = permit

    def looked(self, gauge: EngineSeen) -> None:
        """Take what its own gauge shows."""
        self.seen = gauge

    def releases(self, permit: Permit, now: float) -> int | None:
        """End the permit and return the KV tokens that it had; None when it had ended before."""
        attempt, gate = permit.attempt, self.gate
        permit.released()
        if attempt in self.permits:  # compiled, to look and to delete takes half of what `pop` does
            del self.permits[attempt]
        if self.departing:
            self.departing.pop(attempt, None)
        if self.signal is not None:
            self.signal.inflight(gate.streams - permit.streams)
        given_tokens = gate.prefill_tokens
        kv_tokens = gate.release(attempt)
        if gate.prefill_tokens < given_tokens:
            self.reading.interrupted(now)
        return kv_tokens

    def learns_permit(
        self, permit: Permit, prompt_tokens: int, output_tokens: int, kv_tokens: int, now: float
    ) -> None:
        """Learn how long a permit was out, how much memory it had, and how fast a full engine gives permits back."""
        work_s = self.permit_s(prompt_tokens, permit.output_seen)
        expected_s = self.permit_s(prompt_tokens, output_tokens)
        stayed_s = now - permit.admitted_at
        self.permit_times.lasted(stayed_s, self.foreseen_s(permit))
        # Its work is that of all its streams, and so is the time that they were out.
        self.drain.departed(now, work_s, expected_s, stayed_s * permit.streams, kv_tokens / permit.streams)


def usual_kv_tokens(engine: Engine) -> float:
    """Return how many KV tokens a stream usually has on this engine."""
    return engine.drain.usual_kv_tokens or engine.work_prompt.mean + engine.work_output.mean


def learn_unseen(
    engine: Engine, permit: Permit, unread_tokens: int, output_tokens: float, now: float, most_s: float
) -> None:
    """Learn how fast it reads, and writes whole answers, from one of so many tokens of which no first token was seen.

    Reading and writing get of its time what they were foreseen to take of it. Over answers of unlike lengths that finds the
    speed of each (Richardson 1972; Shepp and Vardi 1982). None teaches a reading longer than `most_s`, in which an idle engine
    is still tried. That is 0 for a stream, of which all that is known is that reading took no longer.
    """
    service, streams = engine.service, engine.gate.streams
    tokens, took_s = max(0, unread_tokens) + permit.prefill_ahead, now - permit.sent_at
    ttft_s, tpot_s = service.ttft_s(tokens), service.tpot_s(streams)
    decode_s = tpot_s * max(0.0, output_tokens / permit.answers - 1.0) if most_s else 0.0
    share = took_s / max(LEAST_WORK_S, ttft_s + decode_s)
    if most_s or share < 1.0:
        service.learn_ttft(tokens, min(ttft_s * share, max(ttft_s, most_s)))
        engine.reading.took(tokens, service.reading_s(tokens))
    if decode_s > ttft_s:  # the pace of a few tokens is not told by what is mostly reading
        service.learn_tpot(streams, tpot_s * share)


def ends_but_for_memory(engine: Engine, permit: Permit) -> int:
    """End the permit of a prompt that was read for another engine; return the KV tokens that this one keeps."""
    permit.released()
    del engine.permits[permit.attempt]
    engine.changed()
    if engine.signal is not None:
        engine.signal.inflight(engine.gate.streams - permit.streams)
    return engine.gate.keeps(permit.attempt)
