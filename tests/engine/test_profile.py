"""Profiles: the shipped file, scaling, and what a gate is told before it has seen an answer."""

from dataclasses import fields

import pytest

from millgate.engine.profile import (
    DEFAULT_PROFILE,
    EngineProfile,
    find_profile,
    load_profiles,
    scaled,
)
from millgate.engine.step_time import PromptChunk

H100 = "llama3-8b_h100_tp1"


def test_every_shipped_profile_names_its_source_and_holds_numbers_of_the_declared_types() -> None:
    profiles = load_profiles()

    assert DEFAULT_PROFILE in profiles
    for name, profile in profiles.items():
        assert profile.name == name
        assert "AIConfigurator" in profile.source or "coefficients of" in profile.source
        for field in fields(EngineProfile):
            value: float | str = getattr(profile, field.name)
            assert isinstance(value, {int: int, float: float, str: str}[field.type])  # type: ignore[index]
            assert isinstance(value, str) or value >= 0
        assert profile.limits().blocks > 1000


@pytest.mark.parametrize(
    ("name", "tokens", "measured_ms"),
    [
        (H100, 2048, 43.5),
        (H100, 8192, 200.0),
        ("llama3-70b_h100_tp4", 2048, 130.0),
        ("llama3-8b_a100_tp1", 2048, 125.0),
    ],
)
def test_prefill_times_agree_with_the_measured_tables(name: str, tokens: int, measured_ms: float) -> None:
    profile = find_profile(name)
    predicted_ms = 1e3 * profile.step_model().step_s(0, 0, [PromptChunk(0, tokens)])

    assert predicted_ms == pytest.approx(measured_ms, rel=profile.prefill_error_max)


@pytest.mark.parametrize(
    ("name", "sequences", "measured_ms"),
    [(H100, 64, 12.6), (H100, 256, 30.7), ("llama3-70b_h100_tp4", 64, 20.7)],
)
def test_decode_times_agree_with_the_measured_tables(name: str, sequences: int, measured_ms: float) -> None:
    profile = find_profile(name)
    predicted_ms = 1e3 * profile.step_model().decode_steps_s(sequences, sequences * 2048, 1)

    assert predicted_ms == pytest.approx(measured_ms, rel=profile.decode_error_max)


def test_a_scaled_engine_is_faster_by_the_factor_and_as_large() -> None:
    profile = find_profile(H100)
    fast = scaled(profile, 10.0)
    chunk = [PromptChunk(512, 700)]

    assert fast.step_model().step_s(7, 9000, chunk) == pytest.approx(
        profile.step_model().step_s(7, 9000, chunk) / 10
    )
    assert fast.step_model().decode_steps_s(7, 9000, 50) == pytest.approx(
        profile.step_model().decode_steps_s(7, 9000, 50) / 10
    )
    assert fast.limits() == profile.limits()


@pytest.mark.parametrize("time_scale", [0.0, -1.0, float("nan")])
def test_a_time_scale_that_is_not_above_zero_is_refused(time_scale: float) -> None:
    with pytest.raises(ValueError, match="time_scale"):
        scaled(find_profile(H100), time_scale)


def test_an_unknown_profile_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=H100):
        find_profile("llama9")


def test_the_prior_predicts_the_step_times_of_its_profile() -> None:
    profile = find_profile(H100)
    model = profile.step_model()
    prior = profile.prior(context_tokens=2048)

    tpot_s = prior.tpot_base_s + 32 * prior.tpot_per_stream_s
    assert tpot_s == pytest.approx(model.decode_steps_s(32, 32 * 2048, 1))
    alone_s = model.step_s(0, 0, [PromptChunk(0, 2000)])
    ttft_s = prior.ttft_base_s + 2000 * prior.ttft_per_token_s
    assert alone_s <= ttft_s <= alone_s * 1.3
