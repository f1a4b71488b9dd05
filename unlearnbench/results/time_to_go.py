"""The order in which the runs of a sweep begin, and the time until the last one ends.

At first the work of a run is guessed from its rows (`cost`), without any measurement, so that it
only orders runs. Once a run has ended an epoch, its seconds for this work are known. Runs of the
same kind will take about as many seconds for the same work. If nothing is known of a kind, a more
general kind stands for it (`_kinds`).

Attacks on a run's last model come after its last epoch, and may take longer than all of its epochs.
Their time is forecast in the same way, and by itself (`cost_of_last_attacks`).
"""

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.unit import Unit
from unlearnbench.results.effort import rows_per_item

Clock = Callable[[], float]
"""Returns the time in seconds."""
Kind = tuple[str | float, ...]
"""Model, split and method, or only the first ones of them: `("phi", 0.1)`."""

FORWARD_AND_BACK = 3.0
"""Cost of a trained row, in forward passes."""
SAMPLED = 8.0
"""Cost of an answer that is sampled token by token, in forward passes."""
NAMED = 0.1
"""Assumed fraction of rows to forget of a named split. A run's specification does not state it."""
FULL_SET = 4000
"""Assumed rows of the full set, as in TOFU. A run's specification does not state them either."""
EVALUATED = 1.0
"""Cost of an evaluation: it scores and answers about as many rows as the full set has."""


def cost(run: RunSpec) -> float:
    """Guess the work of a run, in passes over the full set, to order runs of one model."""
    trained, sampled = rows_per_item(run)
    cost_of_item = trained * FORWARD_AND_BACK + sampled * SAMPLED
    if run.unit is Unit.EPOCH:
        split = run.forget_fraction
        forget_fraction = NAMED if isinstance(split, str) else split
        training = run.budget * (forget_fraction * cost_of_item)
    else:
        training = run.budget * run.training.batch_size / FULL_SET * cost_of_item
    return training + len(run.evaluate_at) * EVALUATED


def cost_of_last_attacks(run: RunSpec) -> float:
    """Guess the work of the attacks that follow a run's last epoch, in passes over the full set.

    Each of their evaluations counts as one of the run's own. The training of an attack is left out.
    """
    evaluations = 0
    for attack in map(attack_from_spec, run.attacks):
        if attack.at == "last":
            answers = attack.samples if isinstance(attack, SamplingAttack) else 1
            evaluations += len(attack.points()) * answers
    return evaluations * EVALUATED


def order_runs(models: Sequence[str], runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Order runs by model and longest first, so that no slot is idle at the end.

    The longest run of each kind comes before all others of its model, so that the remaining time
    is known soon.

    Args:
        models: Names of all models, in their order.
        runs: The runs to order.
    """
    place_of_model = {name: index for index, name in enumerate(models)}
    longest_first = sorted(runs, key=lambda run: (place_of_model[run.model.name], -cost(run)))
    longest_of_kind: dict[Kind, str] = {}
    for run in longest_first:
        longest_of_kind.setdefault(_kinds(run)[0], run.id)
    first_ids = set(longest_of_kind.values())
    # Sorting is stable, so the rest of the order stays.
    return sorted(
        longest_first, key=lambda run: (place_of_model[run.model.name], run.id not in first_ids)
    )


class _Observation(NamedTuple):
    """The last thing that was seen of an active run."""

    epoch: int
    """Epoch, or step, that has ended. 0 when the run begins."""
    time: float
    """Time at which it ended."""


@dataclass
class _Measured:
    """Time and work of all runs of a kind so far."""

    seconds: float = 0.0
    work: float = 0.0
    """In the unit of `cost`."""


class Forecast:
    """The remaining time of a sweep."""

    def __init__(self, runs: Sequence[RunSpec], slots: int, clock: Clock = time.monotonic) -> None:
        """Forecast the end of some runs.

        Args:
            runs: Runs that have not ended, in the order in which they begin.
            slots: Number of runs at a time.
            clock: Returns the time in seconds.
        """
        self._runs = {run.id: run for run in runs}
        self._slots = slots
        self._clock = clock
        self._cost_of_epoch = {run.id: cost(run) / run.budget for run in runs}
        """Cost of an epoch, or of a step, by run."""
        self._cost_of_last_attacks = {run.id: cost_of_last_attacks(run) for run in runs}
        """Cost of the attacks that follow the last epoch, by run."""
        self._active: dict[str, _Observation] = {}
        """By run, its last evaluation or its begin."""
        self._epochs: dict[Kind, _Measured] = defaultdict(_Measured)
        """Of epochs, and of whole runs of earlier commands."""
        self._last_attacks: dict[Kind, _Measured] = defaultdict(_Measured)
        """Of the attacks that follow the last epoch."""

    def learn(self, run: RunSpec, seconds: float) -> None:
        """Take a whole run of an earlier command into account.

        Args:
            run: The run.
            seconds: Time that it took, with its attacks.
        """
        _add(self._epochs, run, seconds, cost(run) + cost_of_last_attacks(run))

    def use_slots(self, slots: int) -> None:
        """Expect another number of runs at a time from now on."""
        self._slots = slots

    def begin(self, run: RunSpec) -> None:
        """Note that a run begins, or continues after an interruption."""
        self._active[run.id] = _Observation(0, self._clock())

    def observe(self, run: RunSpec, epoch: int, seconds: float) -> None:
        """Note that a run has ended an epoch (or step), `seconds` after its last observation."""
        last_epoch = self._active[run.id].epoch if run.id in self._active else 0
        # A run that was restarted may report an epoch again.
        new_epochs = max(0, epoch - last_epoch)
        _add(self._epochs, run, seconds, new_epochs * self._cost_of_epoch.get(run.id, 0.0))
        self._active[run.id] = _Observation(epoch, self._clock())

    def observe_last_attacks(self, run: RunSpec, seconds: float) -> None:
        """Note that the attacks on a run's last model are done, `seconds` after its last epoch."""
        # A run that ended early may have collapsed, and such a run is not attacked.
        has_all_epochs = run.id in self._active and self._active[run.id].epoch >= run.budget
        if has_all_epochs:
            _add(self._last_attacks, run, seconds, self._cost_of_last_attacks.get(run.id, 0.0))

    def restart(self, run: RunSpec) -> None:
        """Note that a run begins again."""
        self._active.pop(run.id, None)

    def replace(self, placeholder: RunSpec, run: RunSpec) -> None:
        """Replace a placeholder by its actual run."""
        if self._runs.pop(placeholder.id, None) is not None:
            self._runs[run.id] = run
            for costs in (self._cost_of_epoch, self._cost_of_last_attacks):
                costs[run.id] = costs.pop(placeholder.id)

    def end(self, run: RunSpec) -> None:
        """Note that a run has ended."""
        self._runs.pop(run.id, None)

    def to_go(self) -> float | None:
        """Return the seconds until the last run ends; None before the first epoch has ended."""
        # Active runs keep their slots. The others wait for the next free slot, in their order.
        runs = sorted(self._runs.values(), key=lambda run: run.id not in self._active)
        busy_seconds = [0.0] * self._slots
        """For each slot, the seconds until it is free. A heap."""
        for run in runs:
            seconds = self._seconds_left(run)
            if seconds is None:
                return None
            heapq.heapreplace(busy_seconds, busy_seconds[0] + seconds)
        return max(busy_seconds)

    def _seconds_left(self, run: RunSpec) -> float | None:
        """Return the seconds that a run still takes; None if nothing has been measured."""
        measured = _closest(self._epochs, run)
        if measured is None:
            return None
        now = self._clock()
        last = self._active.get(run.id, _Observation(0, now))
        # Until the first attacks have ended, their work is assumed to go as fast as that of epochs.
        attacked = _closest(self._last_attacks, run) or measured
        seconds_of_attacks = attacked.seconds / attacked.work * self._cost_of_last_attacks[run.id]
        if last.epoch >= run.budget:
            return max(0.0, seconds_of_attacks - (now - last.time))

        seconds_of_epoch = measured.seconds / measured.work * self._cost_of_epoch[run.id]
        # What a run has done since its last evaluation is seen only at the next one. A run that is
        # late has done no more than that.
        epochs_to_evaluation = _until_next_evaluation(run, last.epoch)
        unseen = min(now - last.time, seconds_of_epoch * epochs_to_evaluation)
        seconds_of_epochs = max(0.0, seconds_of_epoch * (run.budget - last.epoch) - unseen)
        return seconds_of_epochs + seconds_of_attacks


def _add(measured: dict[Kind, _Measured], run: RunSpec, seconds: float, work: float) -> None:
    """Add the time of some work of a run to what was measured of its kinds."""
    for kind in _kinds(run):
        measured[kind].seconds += seconds
        measured[kind].work += work


def _closest(measured: Mapping[Kind, _Measured], run: RunSpec) -> _Measured | None:
    """Return what was measured of runs as similar to this one as possible."""
    for kind in _kinds(run):
        if kind in measured and measured[kind].work:
            return measured[kind]
    return None


def _until_next_evaluation(run: RunSpec, epoch: int) -> int:
    """Return how many epochs, or steps, are left to the next evaluation."""
    if run.unit is Unit.EPOCH:
        return 1
    next_step = next((step for step in run.evaluate_at if step > epoch), run.budget)
    return next_step - epoch


def _kinds(run: RunSpec) -> tuple[Kind, ...]:
    """Return the kinds of a run, from the closest to the most general, which all runs share."""
    model = run.model.name
    split = run.forget_fraction
    return (model, split, run.method.label), (model, split), (model,), ()
