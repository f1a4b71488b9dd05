"""The order of runs, and the time to go, from the time that runs of the same kind have taken.

Before anything is seen a run's share of the work is guessed from what it trains on; what has been
seen replaces the guess, first for runs of its own kind, and through them for all others.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from unlearnbench import registry
from unlearnbench.plan import RunSpec
from unlearnbench.workload import rows_of_an_item

if TYPE_CHECKING:
    from unlearnbench.settings import MethodSpec

Clock = Callable[[], float]
Kind = tuple[str | float, ...]

FORWARD_AND_BACK = 3.0
"""Cost of a trained row; 1: a row that is only read."""
SAMPLED = 8.0
"""Cost of an answer that is sampled token by token."""
EVALUATED = 1.0
"""Cost of an evaluation: about as many rows as the full set, scored and answered once."""


def cost(run: RunSpec) -> float:
    """The work of a run, in passes over the full set: a guess that orders runs of one model."""
    trained, sampled = _rows_of_an_item(run.method.model_dump_json())
    training = run.forget_fraction * (trained * FORWARD_AND_BACK + sampled * SAMPLED)
    return run.epochs * training + len(run.evaluate_at) * EVALUATED


@lru_cache(maxsize=4096)
def _rows_of_an_item(method: str) -> tuple[int, int]:
    """Rows that train, and answers that are sampled, for each row to forget."""
    from unlearnbench.method import Method
    from unlearnbench.settings import MethodSpec

    spec: MethodSpec = MethodSpec.model_validate_json(method)
    made = registry.method_from_spec(spec)
    if not isinstance(made, Method):
        return 0, 0
    from unlearnbench.retain import Objective

    needs = Objective(made, spec.retain).needs
    sampled = needs.samples.count if needs.samples and "sample" in needs.parts else 0
    return rows_of_an_item(needs), sampled


def in_order(models: Sequence[str], runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Runs of one model together, in the order of `models`; longest first, so that no slot idles
    at the end; but one of each kind before all others, so that the time to go is soon known.
    """
    place = {name: index for index, name in enumerate(models)}
    longest = sorted(runs, key=lambda run: (place[run.model.name], -cost(run)))
    first, others, seen = list[RunSpec](), list[RunSpec](), set[Kind]()
    for run in longest:
        (others if _kinds(run)[0] in seen else first).append(run)
        seen.add(_kinds(run)[0])
    return sorted([*first, *others], key=lambda run: place[run.model.name])


class Forecast:
    """Time to go.

    runs     in the order in which they are begun
    slots    runs at a time
    """

    def __init__(self, runs: Sequence[RunSpec], slots: int, clock: Clock = time.monotonic) -> None:
        self._runs = {run.id: run for run in runs}
        self._slots, self._clock = slots, clock
        self._cost = {run.id: cost(run) / run.epochs for run in runs}
        """Of an epoch."""
        self._epoch = dict.fromkeys(self._runs, 0)
        self._since: dict[str, float] = {}
        """When a run under way was begun, or reached its last epoch."""
        self._seen: dict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """By kind of run, from the closest to the most general: seconds, and their cost."""

    def learn(self, run: RunSpec, seconds: float) -> None:
        """`run`, of an earlier command, took so long for all of its epochs."""
        for kind in _kinds(run):
            self._seen[kind][0] += seconds
            self._seen[kind][1] += cost(run)

    def begin(self, run: RunSpec) -> None:
        """`run` is under way, from its first epoch on or after an interruption."""
        self._epoch[run.id], self._since[run.id] = 0, self._clock()

    def observe(self, run: RunSpec, epoch: int, seconds: float) -> None:
        """`run` has reached `epoch`, `seconds` of work after what was observed before."""
        key = run.id
        new = max(0, epoch - self._epoch.get(key, 0))
        for kind in _kinds(run):
            self._seen[kind][0] += seconds
            self._seen[kind][1] += new * self._cost.get(key, 0.0)
        self._epoch[key], self._since[key] = epoch, self._clock()

    def restart(self, run: RunSpec) -> None:
        """`run` begins again."""
        self._epoch[run.id] = 0
        self._since.pop(run.id, None)

    def replace(self, stand_in: RunSpec, run: RunSpec) -> None:
        """What `stand_in` stood for is known: it is `run`."""
        if self._runs.pop(stand_in.id, None) is not None:
            self._runs[run.id], self._epoch[run.id] = run, 0
            self._cost[run.id] = self._cost.pop(stand_in.id)

    def end(self, run: RunSpec) -> None:
        """`run` needs no more time."""
        self._runs.pop(run.id, None)

    def to_go(self) -> float | None:
        """Seconds until the last run ends; None before the first epoch."""
        left = {key: self._left(key, run) for key, run in self._runs.items()}
        known = {key: seconds for key, seconds in left.items() if seconds is not None}
        if len(known) < len(left):
            return None
        # What is under way first; then each slot that is free takes the next.
        free = [0.0] * self._slots
        for key in sorted(known, key=lambda key: key not in self._since):
            heapq.heapreplace(free, free[0] + known[key])
        return max(free)

    def _left(self, key: str, run: RunSpec) -> float | None:
        for kind in _kinds(run):
            seconds, work = self._seen.get(kind, (0.0, 0.0))
            if work:
                each = seconds / work * self._cost[key]
                now = self._clock()
                passed = min(now - self._since.get(key, now), each)
                return max(0.0, each * (run.epochs - self._epoch[key]) - passed)
        return None


def _kinds(run: RunSpec) -> tuple[Kind, ...]:
    model, fraction = run.model.name, run.forget_fraction
    return (model, fraction, run.method.label), (model, fraction), (model,), ()
