"""The order of runs, and the time that is left of a sweep.

At first a run's share of the work is guessed from its rows. Measured times replace the guess, first
for runs of the same kind, and through them for all others.
"""

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.unit import Unit
from unlearnbench.results.effort import rows_per_item

Clock = Callable[[], float]
Kind = tuple[str | float, ...]

FORWARD_AND_BACK = 3.0
"""Cost of a trained row, in forward passes."""
SAMPLED = 8.0
"""Cost of an answer that is sampled token by token."""
NAMED = 0.1
"""Share of the rows that a named split forgets; its size is no part of a run's specification."""
FULL_SET = 4000
"""Rows of the full set, about, which are no part of a run's specification either: TOFU's."""
EVALUATED = 1.0
"""Cost of an evaluation: about as many rows as the full set, scored and answered once."""


def cost(run: RunSpec) -> float:
    """Guess the work of a run, in passes over the full set, to order runs of one model."""
    trained, sampled = rows_per_item(run)
    split = run.forget_fraction
    share = NAMED if isinstance(split, str) else split
    each_row = trained * FORWARD_AND_BACK + sampled * SAMPLED
    if run.unit is Unit.EPOCH:
        training = run.budget * (share * each_row)
    else:
        training = run.budget * run.training.batch_size / FULL_SET * each_row
    return training + len(run.evaluate_at) * EVALUATED


def order_runs(models: Sequence[str], runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Order runs by model, as in `models`, and longest first, so that no slot is idle at the end.

    One run of each kind comes before all others, so that the remaining time is known soon.
    """
    location = {name: index for index, name in enumerate(models)}
    longest = sorted(runs, key=lambda run: (location[run.model.name], -cost(run)))
    first = {run.id for run in {_kinds(run)[0]: run for run in reversed(longest)}.values()}
    return sorted(longest, key=lambda run: (location[run.model.name], run.id not in first))


class Forecast:
    """The remaining time of a sweep.

    runs     in the order in which they begin
    slots    number of concurrent runs
    """

    def __init__(self, runs: Sequence[RunSpec], slots: int, clock: Clock = time.monotonic) -> None:
        self._runs = {run.id: run for run in runs}
        self._slots, self._clock = slots, clock
        self._cost = {run.id: cost(run) / run.budget for run in runs}
        """Cost of an epoch, or of a step."""
        self._active: dict[str, tuple[int, float]] = {}
        """The latest epoch (or step) of each active run at which it was evaluated, and the time at
        which that ended; 0 at its begin."""
        self._seen: dict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """Seconds and their cost by kind of run, from the closest to the most general."""

    def learn(self, run: RunSpec, seconds: float, work: float | None = None) -> None:
        """Use the seconds of some `work` of a run; default: all epochs, in an earlier command."""
        work = cost(run) if work is None else work
        for kind in _kinds(run):
            self._seen[kind][0] += seconds
            self._seen[kind][1] += work

    def begin(self, run: RunSpec) -> None:
        """Note that `run` begins, or continues after an interruption."""
        self._active[run.id] = 0, self._clock()

    def observe(self, run: RunSpec, epoch: int, seconds: float) -> None:
        """Note that `run` has ended `epoch` (or step), `seconds` after its last observation."""
        new = max(0, epoch - self._active.get(run.id, (0, 0.0))[0])
        self.learn(run, seconds, new * self._cost.get(run.id, 0.0))
        self._active[run.id] = epoch, self._clock()

    def restart(self, run: RunSpec) -> None:
        """Note that `run` begins again."""
        self._active.pop(run.id, None)

    def replace(self, placeholder: RunSpec, run: RunSpec) -> None:
        """Replace a placeholder by its actual run."""
        if self._runs.pop(placeholder.id, None) is not None:
            self._runs[run.id], self._cost[run.id] = run, self._cost.pop(placeholder.id)

    def end(self, run: RunSpec) -> None:
        """Note that `run` has ended."""
        self._runs.pop(run.id, None)

    def to_go(self) -> float | None:
        """Seconds until the last run ends; None before the first epoch."""
        free = [0.0] * self._slots
        # Active runs first; then each free slot takes the next.
        for id_, run in sorted(self._runs.items(), key=lambda item: item[0] not in self._active):
            seen = (self._seen[kind] for kind in _kinds(run))
            seconds, work = next((item for item in seen if item[1]), (0.0, 0.0))
            if not work:
                return None
            each, now = seconds / work * self._cost[id_], self._clock()
            epoch, since = self._active.get(id_, (0, now))
            # What a run does between two observations is seen only at the next.
            unseen = min(now - since, each * _until_next(run, epoch))
            left = max(0.0, each * (run.budget - epoch) - unseen)
            heapq.heapreplace(free, free[0] + left)
        return max(free)


def _until_next(run: RunSpec, epoch: int) -> int:
    """Return how many epochs, or steps, are left to the next evaluation."""
    if run.unit is Unit.EPOCH:
        return 1
    return next((step for step in run.evaluate_at if step > epoch), run.budget) - epoch


def _kinds(run: RunSpec) -> tuple[Kind, ...]:
    model, fraction = run.model.name, run.forget_fraction
    return (model, fraction, run.method.label), (model, fraction), (model,), ()
