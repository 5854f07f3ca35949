"""How much of a load's prompts could be found again: by a cache without end, and by one that all engines share.

One shared cache as large as all engines together, with free transfers, is what placement is measured against: it knows no
wrong engine and holds nothing twice. It is no bound of every policy. Of sessions in strict turn that do not fit together it
holds none, while engines that keep some sessions and give up others would hold a part.
"""

from collections import OrderedDict
from collections.abc import Iterable
from math import inf

from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job


class SharedCache:
    """Units of prefixes, the least recently used evicted first, the end of a prefix before its beginning."""

    def __init__(self, capacity_tokens: float = inf) -> None:
        self.asked_tokens = 0
        self.hit_tokens = 0
        self._most_units = capacity_tokens / PREFIX_UNIT_TOKENS
        self._units: OrderedDict[int, None] = OrderedDict()

    @property
    def hit_share(self) -> float:
        """Share of the prompt tokens asked for so far that were found."""
        return self.hit_tokens / max(1, self.asked_tokens)

    def ask(self, job: Job) -> None:
        """Look a prompt up, and keep it with its answer; the last token of a prompt is never found."""
        units = self._units
        found = 0
        for unit in job.prefix_ids[: (job.prompt_tokens - 1) // PREFIX_UNIT_TOKENS]:
            if unit not in units:
                break
            found += 1
        self.asked_tokens += job.prompt_tokens
        self.hit_tokens += found * PREFIX_UNIT_TOKENS
        for unit in reversed(job.prefix_ids):
            units[unit] = None
            units.move_to_end(unit)
        while len(units) > self._most_units:
            units.popitem(last=False)


def shared_hit_share(jobs: Iterable[Job], capacity_tokens: float = inf) -> float:
    """Return the share of these jobs' prompt tokens that one shared cache finds, asked for in this order."""
    cache = SharedCache(capacity_tokens)
    for job in jobs:
        cache.ask(job)
    return cache.hit_share
