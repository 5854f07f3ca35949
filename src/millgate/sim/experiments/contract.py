"""What an experiment is, and how seeds become a mean with a confidence interval."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from statistics import fmean, median, stdev
from typing import Any

Metrics = Mapping[str, float]
Measured = Sequence[tuple[float, Metrics]]
"""What one run of one arm shows: metrics at one or several places of the x axis."""

# Two-sided 95 % points of Student's t law by degrees of freedom; beyond the table the normal law's.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_NORMAL = 2.05
FEWEST_SEEDS = 5


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing to run for every seed: a series of the picture, and where on its x axis (None: a whole curve)."""

    series: str
    x: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with its 95 % confidence interval, and the middle one of the seeds."""

    mean: float
    low: float
    high: float
    seeds: int
    median: float


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One point of one series."""

    series: str
    x: float
    metrics: Mapping[str, Estimate]


Facts = Callable[[Sequence[SeriesPoint]], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One question: its arms, how to run one of them, and which metric answers it.

    `facts` draws single numbers out of the places; `seeds` is the usual number.
    `vary` returns the same question with other knobs, by name and text; a ValueError says which is wrong. None: it has
    no knobs.
    """

    name: str
    question: str
    arms: tuple[Arm, ...]
    run: Callable[[Arm, int], Measured]
    metric: str
    x_label: str
    y_label: str
    seeds: int = FEWEST_SEEDS
    logarithmic_x: bool = False
    facts: Facts = field(default=lambda _places: {})
    vary: "Callable[[Mapping[str, str]], Experiment] | None" = None


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """An experiment's result."""

    name: str
    question: str
    metric: str
    x_label: str
    y_label: str
    logarithmic_x: bool
    places: tuple[SeriesPoint, ...]
    facts: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        places, facts = [asdict(place) for place in self.places], dict(self.facts)
        told = {"name": self.name, "question": self.question, "metric": self.metric}
        return {**told, "places": places, "facts": facts}


def answer(experiment: Experiment, runs: Sequence[tuple[Arm, Measured]]) -> ExperimentResult:
    """Put the runs of all seeds together."""
    gathered: dict[tuple[str, float], dict[str, list[float]]] = {}
    for arm, measured in runs:
        for x, metrics in measured:
            columns = gathered.setdefault((arm.series, x), {})
            for name, value in metrics.items():
                columns.setdefault(name, []).append(value)
    places = tuple(
        SeriesPoint(series, x, {name: estimate(values) for name, values in columns.items()})
        for (series, x), columns in gathered.items()
    )
    return ExperimentResult(
        experiment.name,
        experiment.question,
        experiment.metric,
        experiment.x_label,
        experiment.y_label,
        experiment.logarithmic_x,
        places,
        experiment.facts(places),
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean, 95 % interval (Student) and median of independent values."""
    mean, middle, count = fmean(values), median(values), len(values)
    if count < 2:
        return Estimate(mean, mean, mean, count, middle)
    wide = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL
    half = wide * stdev(values) / sqrt(count)
    return Estimate(mean, mean - half, mean + half, count, middle)
