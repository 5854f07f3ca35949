"""What users heard, as tables."""

from collections.abc import Sequence
from statistics import fmean, quantiles

from lab.real_engine.users import Heard

_MANY = 2


def by_streams(rows: Sequence[tuple[int, Sequence[Heard]]]) -> str:
    """Return tokens a second, time to the first token and between tokens, by how many were asked at once."""
    lines = ["| streams | tokens/s | TTFT mean s | TPOT mean ms |", "|---|---|---|---|"]
    for streams, heard in rows:
        done = [each for each in heard if each.answered]
        if not done:
            lines.append(f"| {streams} | none answered | | |")
            continue
        rate = _tokens(done) / max(each.last_s or 0.0 for each in done)
        ttft, tpot = fmean(each.ttft_s for each in done), fmean(each.tpot_s for each in done)
        lines.append(f"| {streams} | {rate:.0f} | {ttft:.2f} | {1e3 * tpot:.1f} |")
    return "\n".join(lines)


def of_arms(arms: Sequence[tuple[str, Sequence[Heard]]], seconds: float, ttft_s: float, tpot_s: float) -> str:
    """Return what became of the same users before each address; `good` is in time by both measures, as a share of all."""
    lines = [
        f"good: first token within {ttft_s:g} s of the first try, then one each {1e3 * tpot_s:g} ms on average",
        "| before | users | good | answered | left | refused or failed | good tokens/s | TTFT p50, p95 s | TPOT p95 ms | tries |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, heard in arms:
        done = [each for each in heard if each.answered]
        good = [each for each in done if each.ttft_s <= ttft_s and each.tpot_s <= tpot_s]
        left = sum(each.left for each in heard)
        ttft, tpot = [each.ttft_s for each in done], [1e3 * each.tpot_s for each in done]
        lines.append(
            f"| {name} | {len(heard)} | {len(good) / len(heard):.3f} | {len(done)} | {left} "
            f"| {len(heard) - len(done) - left} | {_tokens(good) / seconds:.0f} "
            f"| {_quantile(ttft, 50):.2f}, {_quantile(ttft, 95):.2f} | {_quantile(tpot, 95):.0f} "
            f"| {fmean(each.tries for each in heard):.2f} |"
        )
    return "\n".join(lines)


def _tokens(heard: Sequence[Heard]) -> int:
    return sum(each.output_tokens for each in heard)


def _quantile(values: Sequence[float], percent: int) -> float:
    if len(values) < _MANY:
        return values[0] if values else float("nan")
    return quantiles(values, n=100, method="inclusive")[percent - 1]
