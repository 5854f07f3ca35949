"""Quantities are read as people write them, and refused with what would have been understood."""

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from millgate.config import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("250ms", 0.25),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("100us", 0.0001),
        (" 1.5 s ", 1.5),
        (0, 0.0),
        ("0", 0.0),
    ],
)
def test_durations_are_read_in_seconds(text: object, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "count"),
    [(200, 200), ("8k", 8000), ("8Ki", 8192), ("1.5k", 1500), ("1.005k", 1005), ("2M", 2_000_000)],
)
def test_counts_are_whole_numbers_with_si_and_iec_suffixes(text: object, count: int) -> None:
    assert units.parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [(512, 512), ("64KiB", 65_536), ("256MB", 256_000_000), ("1.5kB", 1500), ("7B", 7)],
)
def test_sizes_are_read_in_bytes(text: object, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("parse", "value", "complaint"),
    [
        (units.parse_duration, 30, "30 has no unit: write 30s, 30ms or 30m"),
        (units.parse_duration, "30", "'30' has no unit: write 30s, 30ms or 30m"),
        (units.parse_duration, "30 years", "unit 'years' is not one of us, ms, s, m, h"),
        (units.parse_duration, "soon", "'soon' is not a duration: write it like 30s, 250ms, 5m or 1h"),
        (units.parse_duration, "-1s", "must be finite and not negative"),
        (units.parse_duration, True, "True is not a duration"),
        (units.parse_duration, None, "None is not a duration"),
        (units.parse_count, "1.5", "'1.5' is not a whole number: it comes to 1.5"),
        (units.parse_count, "8K5", "'8K5' is not a whole number"),
        (units.parse_count, True, "True is not a whole number"),
        (units.parse_count, float("nan"), "must be finite"),
        (units.parse_size, "64kib", "unit 'kib' is not one of B, kB, KB, MB, GB, KiB, MiB, GiB"),
        (units.parse_number, "3s", "'3s' is not a number: it takes no unit"),
        (units.parse_count, "٣", "is not a whole number"),
    ],
)
def test_a_refusal_names_the_value_and_what_is_understood(
    parse: Callable[[object], float], value: object, complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"is not|has no") as refusal:
        parse(value)

    assert complaint in str(refusal.value)


def test_a_refusal_quotes_at_most_sixty_characters_of_what_was_written() -> None:
    with pytest.raises(ValueError, match="is not a size") as refusal:
        units.parse_size("x" * 5000)

    assert len(str(refusal.value)) < 200


@given(st.integers(min_value=0, max_value=10**12))
def test_a_formatted_size_is_read_back_exactly(size_bytes: int) -> None:
    assert units.parse_size(units.format_size(size_bytes)) == size_bytes


@given(st.integers(min_value=0, max_value=10**7).map(lambda thousandths: thousandths / 1000))
def test_a_formatted_duration_is_read_back(seconds: float) -> None:
    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)


@given(st.text(max_size=20))
def test_any_text_is_either_read_or_refused_as_a_value_error(text: str) -> None:
    for parse in (units.parse_duration, units.parse_count, units.parse_size, units.parse_number):
        try:
            assert parse(text) >= 0
        except ValueError as refusal:
            assert str(refusal)  # noqa: PT017 - whether it raises is up to the text
