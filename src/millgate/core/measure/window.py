"""Counts over the last minutes or hour in bounded memory: a ring of parts, the oldest forgotten whole."""


class Window:
    """So many counters over a rolling span of `parts` times `part_s` core seconds."""

    __slots__ = ("_counters", "_counts", "_part_s", "_parts", "_stamps")

    def __init__(self, part_s: float, parts: int, counters: int) -> None:
        self._part_s, self._parts, self._counters = part_s, parts, counters
        self._counts = [[0] * counters for _ in range(parts)]
        self._stamps = [-1] * parts

    def add(self, now: float, amounts: tuple[int, ...]) -> None:
        """Add to every counter, in their order."""
        stamp = int(now / self._part_s)
        place = stamp % self._parts
        if self._stamps[place] != stamp:
            self._stamps[place] = stamp
            self._counts[place] = list(amounts)
            return
        counts = self._counts[place]
        for index, amount in enumerate(amounts):
            counts[index] += amount

    def read(self, now: float, parts: int) -> tuple[int, ...]:
        """Return every counter over the newest parts, the running one included; changes nothing."""
        newest = int(now / self._part_s)
        current = [
            self._counts[stamp % self._parts]
            for stamp in range(newest - min(parts, self._parts) + 1, newest + 1)
            if self._stamps[stamp % self._parts] == stamp
        ]
        return tuple(sum([counts[index] for counts in current]) for index in range(self._counters))
