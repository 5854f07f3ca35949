"""Kernel timings as tables, with linear interpolation between what was measured.

Three tables describe one model on one device. They are *dense* layers by tokens in the step, and *per sequence* layers
by sequences that get a token. The third is *attention* by prompt chunk, tokens before it, decoding sequences and their
mean context. Beyond the last measured point the last piece is continued, below the first the first value stands: a
kernel has a floor.
"""

import csv
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path

Node = dict[float, "Node"] | dict[float, float]
_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


class MeasuredError(ValueError):
    """A measured run cannot be read; names the file and what is wrong."""


class Grid:
    """Values over several axes, where every point of one axis may have its own points on the next."""

    def __init__(self, rows: Iterable[tuple[Sequence[float], float]]) -> None:
        groups: dict[float, list[tuple[Sequence[float], float]]] = {}
        for point, value in rows:
            groups.setdefault(point[0], []).append((point[1:], value))
        self._keys = sorted(groups)
        self._children: list[Grid | float] = [
            Grid(groups[key]) if groups[key][0][0] else groups[key][0][1] for key in self._keys
        ]

    def at(self, *point: float) -> float:
        """Return the interpolated value."""
        keys, first = self._keys, point[0]
        if len(keys) == 1 or first <= keys[0]:
            return self._value(0, point)
        above = min(bisect_left(keys, first), len(keys) - 1)
        if keys[above] == first:
            return self._value(above, point)
        low, high = self._value(above - 1, point), self._value(above, point)
        share = (first - keys[above - 1]) / (keys[above] - keys[above - 1])
        return low + share * (high - low)

    @property
    def highest(self) -> float:
        """The last measured point of the first axis."""
        return self._keys[-1]

    @property
    def least(self) -> float:
        """The smallest value."""
        return min(child.least if isinstance(child, Grid) else child for child in self._children)

    def divided(self, parts: int, floor: float) -> "Grid":
        """Return the same with what each value has above the floor divided by so many."""
        new = Grid.__new__(Grid)
        new._keys = self._keys  # noqa: SLF001 - its own kind
        new._children = [  # noqa: SLF001
            child.divided(parts, floor)
            if isinstance(child, Grid)
            else min(child, floor) + max(0.0, child - floor) / parts
            for child in self._children
        ]
        return new

    def _value(self, index: int, point: Sequence[float]) -> float:
        child = self._children[index]
        return child.at(*point[1:]) if isinstance(child, Grid) else child


def read_layers(path: Path, axis: str) -> dict[str, Grid]:
    """Return one grid per layer of a file with the columns layer, `axis` and time_us; values in seconds."""
    rows: dict[str, list[tuple[tuple[float], float]]] = {}
    for row in _rows(path, ("layer", axis, "time_us")):
        rows.setdefault(row["layer"], []).append(
            ((_number(path, row, axis),), _number(path, row, "time_us") / 1e6)
        )
    return {layer: Grid(points) for layer, points in rows.items()}


class Attention:
    """One layer's attention kernel in seconds: prompts alone, decodes alone, and both in one call."""

    def __init__(self, rows: Iterable[Sequence[float]]) -> None:
        prompts, decodes, mixed = [], [], []
        for chunk, before, sequences, context, time_us in rows:
            seconds = time_us / 1e6
            if chunk == 0:
                decodes.append(((sequences, context), seconds))
            elif sequences == 0:
                prompts.append(((chunk, before), seconds))
            else:
                mixed.append(((chunk, before, sequences, context), seconds))
        if not prompts or not decodes:
            raise MeasuredError("attention: needs rows of prompts alone and of decodes alone")
        self._prompts, self._decodes = Grid(prompts), Grid(decodes)
        self._mixed = Grid(mixed) if mixed else None
        self._launch_s = self._prompts.at(0, 0)

    def divided(self, parts: int) -> "Attention":
        """Return that of one of so many devices, which have its heads and their KV cache in equal parts; the launch stays."""
        new = Attention.__new__(Attention)
        floor = new._launch_s = self._launch_s  # noqa: SLF001 - its own kind
        new._prompts = self._prompts.divided(parts, floor)  # noqa: SLF001
        new._decodes = self._decodes.divided(parts, floor)  # noqa: SLF001
        new._mixed = self._mixed and self._mixed.divided(parts, floor)  # noqa: SLF001
        return new

    def decodes_s(self, sequences: int, context: float) -> float:
        """Seconds of a step in which these sequences decode, with this mean context."""
        return self._decodes.at(sequences, context)

    def step_s(self, chunks: Sequence[tuple[int, int]], sequences: int, context: float) -> float:
        """Seconds of a step with prompt chunks (tokens before, tokens) beside decoding sequences.

        Prompts do not attend to each other, so each chunk costs its own square, the launch once. What the decodes
        add is what the measured mixed call adds to its prompt part.
        """
        alone = self._launch_s + sum(
            max(0.0, self._prompts.at(tokens, before) - self._launch_s) for before, tokens in chunks
        )
        if not sequences:
            return alone
        if self._mixed is None:
            return alone + self.decodes_s(sequences, context)
        tokens = sum(chunk[1] for chunk in chunks)
        before = sum(chunk[0] * chunk[1] for chunk in chunks) / tokens
        both = self._mixed.at(tokens, before, sequences, context)
        return alone + max(0.0, both - self._prompts.at(tokens, before))


def read_attention(path: Path) -> Attention:
    """Return the attention table of a file."""
    columns = (*_ATTENTION, "time_us")
    return Attention([_number(path, row, column) for column in columns] for row in _rows(path, columns))


def _rows(path: Path, columns: Sequence[str]) -> Iterable[Mapping[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        try:
            missing = set(columns) - set(reader.fieldnames or ())
            if missing:
                raise MeasuredError(f"{path.name}: lacks the column {', '.join(sorted(missing))}")
            yield from reader
        except (UnicodeDecodeError, csv.Error) as error:
            raise MeasuredError(f"{path.name}: not a table in UTF-8: {error}") from None
        if reader.line_num < 2:
            raise MeasuredError(f"{path.name}: has no row")


def _number(path: Path, row: Mapping[str, str], column: str) -> float:
    try:
        number = float(row[column])
    except (TypeError, ValueError):
        number = -1.0
    if not 0.0 <= number < inf:
        raise MeasuredError(f"{path.name}: {column}: {row[column]!r} is not a number from 0 on")
    return number
