"""The order of runs, and the remaining time of a sweep from the times of similar runs.

At first a run's share of the work is guessed from its rows. Measured times replace the guess, first
for runs of the same kind, and through them for all others.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache

from unlearnbench.config import method_specs
from unlearnbench.config.schema import MethodSpec
from unlearnbench.plan.run_spec import RunSpec

Clock = Callable[[], float]
Kind = tuple[str | float, ...]

FORWARD_AND_BACK = 3.0
"""Cost of a trained row, in forward passes."""
SAMPLED = 8.0
"""Cost of an answer that is sampled token by token."""
NAMED = 0.1
"""Share of the rows that a named split forgets; its size is no part of a run's specification."""
EVALUATED = 1.0
"""Cost of an evaluation: about as many rows as the full set, scored and answered once."""


def cost(run: RunSpec) -> float:
    """Guess the work of a run, in passes over the full set, to order runs of one model."""
    trained, sampled = rows_per_item(run)
    split = run.forget_fraction
    share = NAMED if isinstance(split, str) else split
    training = share * (trained * FORWARD_AND_BACK + sampled * SAMPLED)
    return run.epochs * training + len(run.evaluate_at) * EVALUATED


def rows_per_item(run: RunSpec) -> tuple[int, int]:
    """Trained rows, and sampled answers, for each forget row; none of what trains nothing."""
    return _rows_per_item(run.method.model_dump_json())


@lru_cache(maxsize=4096)
def _rows_per_item(text: str) -> tuple[int, int]:
    from unlearnbench.api.method import Method
    from unlearnbench.training.objective import Objective

    spec = MethodSpec.model_validate_json(text)
    method = method_specs.method_from_spec(spec)
    if not isinstance(method, Method):
        return 0, 0
    needs = Objective(method, spec.retain).needs
    sampled = needs.samples.count if needs.samples and "sample" in needs.parts else 0
    return needs.rows_per_item, sampled


def order_runs(models: Sequence[str], runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Order runs by model, as in `models`, and longest first, so that no slot is idle at the end.

    One run of each kind comes before all others, so that the remaining time is known soon.
    """
    place = {name: index for index, name in enumerate(models)}
    longest = sorted(runs, key=lambda run: (place[run.model.name], -cost(run)))
    first, others, seen = list[RunSpec](), list[RunSpec](), set[Kind]()
    for run in longest:
        (others if _kinds(run)[0] in seen else first).append(run)
        seen.add(_kinds(run)[0])
    return sorted([*first, *others], key=lambda run: place[run.model.name])


class Forecast:
    """The remaining time of a sweep.

    runs     in the order in which they begin
    slots    number of concurrent runs
    """

    def __init__(self, runs: Sequence[RunSpec], slots: int, clock: Clock = time.monotonic) -> None:
        self._runs = {run.id: run for run in runs}
        self._slots, self._clock = slots, clock
        self._cost = {run.id: cost(run) / run.epochs for run in runs}
        """Cost of an epoch."""
        self._epoch = dict.fromkeys(self._runs, 0)
        self._since: dict[str, float] = {}
        """Time at which an active run began, or ended its latest epoch."""
        self._seen: dict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """Seconds and their cost by kind of run, from the closest to the most general."""

    def learn(self, run: RunSpec, seconds: float) -> None:
        """Use the seconds of all epochs of `run`, which an earlier command has finished."""
        for kind in _kinds(run):
            self._seen[kind][0] += seconds
            self._seen[kind][1] += cost(run)

    def begin(self, run: RunSpec) -> None:
        """Note that `run` begins, or continues after an interruption."""
        self._epoch[run.id], self._since[run.id] = 0, self._clock()

    def observe(self, run: RunSpec, epoch: int, seconds: float) -> None:
        """Note that `run` has ended `epoch`, `seconds` of work after its last observation."""
        key = run.id
        new = max(0, epoch - self._epoch.get(key, 0))
        for kind in _kinds(run):
            self._seen[kind][0] += seconds
            self._seen[kind][1] += new * self._cost.get(key, 0.0)
        self._epoch[key], self._since[key] = epoch, self._clock()

    def restart(self, run: RunSpec) -> None:
        """Note that `run` begins again."""
        self._epoch[run.id] = 0
        self._since.pop(run.id, None)

    def replace(self, placeholder: RunSpec, run: RunSpec) -> None:
        """Replace a placeholder by its actual run."""
        if self._runs.pop(placeholder.id, None) is not None:
            self._runs[run.id], self._epoch[run.id] = run, 0
            self._cost[run.id] = self._cost.pop(placeholder.id)

    def end(self, run: RunSpec) -> None:
        """Note that `run` has ended."""
        self._runs.pop(run.id, None)

    def to_go(self) -> float | None:
        """Seconds until the last run ends; None before the first epoch."""
        left = {key: self._left(key, run) for key, run in self._runs.items()}
        known = {key: seconds for key, seconds in left.items() if seconds is not None}
        if len(known) < len(left):
            return None
        # Active runs first; then each free slot takes the next.
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
