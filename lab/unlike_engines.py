"""Engines of two generations of GPU behind one gate: chats, and long prompts that the slower ones read too late."""

from dataclasses import dataclass, replace
from heapq import merge

from lab.suite import Shown
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.engine.profile import find_profile
from millgate.sim.fleet import SimulatedFleet
from millgate.sim.jobs import Job
from millgate.sim.laws import lognormal
from millgate.sim.randomness import Streams
from millgate.sim.replay import replay
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.wiring.chosen import PREFILL_TOKENS

_PROFILES = ("llama3-70b_h200_tp4", "llama3-70b_a100_tp4")
_CHAT_TOKENS, _SPREAD = 500.0, 0.8
_CHAT_ANSWER_TOKENS, _ANSWER_TOKENS = 200.0, 100.0


@dataclass(frozen=True, slots=True)
class UnlikeCase:
    """So many engines of each generation, each with so many sequences; chats and long prompts a second, and their deadline."""

    each: int = 1
    sequences: int = 32
    chats_per_s: float = 2.0
    long_per_s: float = 1.0
    long_tokens: float = 10_000.0
    deadline_s: float = 2.0
    seconds: float = 300.0


def answered(case: UnlikeCase, seed: int) -> Shown:
    """Return the share of requests that ended good."""
    streams = Streams(seed)
    lane = LaneSettings("interactive", ttft_slo_s=case.deadline_s, deadline_s=case.deadline_s)
    profiles = {
        f"{name}-{number}": replace(find_profile(name), max_num_seqs=case.sequences)
        for name in _PROFILES
        for number in range(case.each)
    }
    engines = tuple(
        EngineSettings(
            name, case.sequences, kv_tokens=int(0.9 * profile.kv_tokens), prefill_tokens=PREFILL_TOKENS
        )
        for name, profile in profiles.items()
    )
    prompts = (
        (case.chats_per_s, _CHAT_TOKENS, _CHAT_ANSWER_TOKENS),
        (case.long_per_s, case.long_tokens, _ANSWER_TOKENS),
    )
    coming = [
        jobs(
            steady(per_s, streams, number=number),
            Lengths(lognormal(tokens, _SPREAD), lognormal(answer_tokens, _SPREAD)),
            streams,
            until_s=case.seconds,
            number=number,
        )
        for number, (per_s, tokens, answer_tokens) in enumerate(prompts)
    ]
    fleet = SimulatedFleet(Settings((lane,), engines), profiles)
    return {"goodput": replay(merge(*coming, key=_at), fleet, seed=seed).summary.good_share}


def _at(job: Job) -> float:
    return job.at_s


_DOUBLE = UnlikeCase(each=2, chats_per_s=4.0, long_per_s=2.0)
UNLIKE_CASES = {
    "one of each": UnlikeCase(),
    "one of each, at the capacity": UnlikeCase(chats_per_s=4.0, long_per_s=2.0),
    "two of each": _DOUBLE,
    "two of each, at the capacity": replace(_DOUBLE, chats_per_s=8.0, long_per_s=4.0),
    "one of each, a deadline of 5 s": UnlikeCase(
        chats_per_s=1.0, long_per_s=0.8, long_tokens=20_000.0, deadline_s=5.0
    ),
}
BUSIER_CASES = {
    "one of each": UnlikeCase(chats_per_s=6.0, long_per_s=3.0),
    "two of each": replace(_DOUBLE, chats_per_s=12.0, long_per_s=6.0),
}
