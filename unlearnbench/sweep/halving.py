"""Stop weak runs early by asynchronous successive halving, as Tune implements it.

A group of runs that can be compared has a scheduler of its own. This module imports Ray, which
takes a second. It is therefore imported only by a sweep that begins its runs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Metric, Scheduler, weighted
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import read_records
from unlearnbench.sweep.trial_messages import decode_report

EntryOf = Callable[[str], str]
"""Gives the name of the method entry that a run is a trial of, by the run's id.

The name is empty for a run that belongs to no entry.
"""


class GroupKey(NamedTuple):
    """What runs have in common whose metrics are compared."""

    model: str
    split: SplitKey
    method: str
    entry: str
    """Name of the method entry, see `EntryOf`."""


class HalvingMoments(NamedTuple):
    """The moments between which runs may be stopped: epochs, or steps in a sweep by steps."""

    first: int
    """First moment at which runs have a result."""
    end: int
    """First moment at which no run is stopped any more."""


def moments_of_halving(config: SweepConfig) -> HalvingMoments:
    """Return the moments between which the runs of a sweep may be stopped.

    To stop a run at its last evaluation saves nothing. In a sweep by steps, the last useful moment
    is therefore the last evaluated step but one.
    """
    if config.unit is Unit.EPOCH:
        return HalvingMoments(first=1, end=config.budget)
    first, *later = config.evaluate_at
    useful = [first, *later[:-1]]
    return HalvingMoments(first=first, end=useful[-1] + 1)


class HalvingByGroup(FIFOScheduler):
    """Tune's scheduler of a sweep. It asks the scheduler of a run's group.

    Metrics of different models or splits are not comparable, and each method entry is to be tuned.

    Attributes:
        groups: The scheduler of each group, created at its first use.
    """

    def __init__(
        self,
        settings: Scheduler,
        moments: HalvingMoments,
        runs: Mapping[str, RunSpec],
        folder: Path,
        entry_of: EntryOf,
    ) -> None:
        """Begin with the runs that earlier commands have recorded.

        Args:
            settings: Metric and rungs.
            moments: When runs may be stopped.
            runs: All runs by id. A search adds runs later.
            folder: The sweep's folder, which has the records of earlier commands.
            entry_of: Gives the method entry of a run.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._score = settings.metric
        self._runs = runs
        self._entry_of = entry_of
        self.groups: defaultdict[GroupKey, Any] = defaultdict(
            partial(_new_scheduler, settings, moments)
        )
        for record in read_records(folder):
            if record.kind != "run" or record.status == "failed":
                continue
            scheduler = self.groups[GroupKey(*record.panel, record.method, entry_of(record.id))]
            trial = SimpleNamespace(trial_id=record.id)
            scheduler.on_trial_add(None, trial)
            for result in record.epochs:
                scored = _scored(self._score, result.metrics, result.epoch)
                scheduler.on_trial_result(None, trial, scored)

    def __reduce__(self) -> tuple[Any, ...]:
        # See `tune_adapters`: Tune pickles its scheduler, and nothing reads what it has pickled.
        return FIFOScheduler, ()

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take up a run that is new to Tune."""
        self._scheduler_of(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
        """Decide after an evaluated epoch whether the run goes on."""
        epoch = decode_report(result["report"])
        scored = _scored(self._score, epoch.metrics, epoch.epoch)
        return str(self._scheduler_of(trial).on_trial_result(tune_controller, trial, scored))

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Drop a run that Tune gives up before it has begun."""
        self._scheduler_of(trial).on_trial_remove(tune_controller, trial)

    def _scheduler_of(self, trial: Any) -> Any:
        run = self._runs[trial.config["run"]["id"]]
        return self.groups[
            GroupKey(run.model.name, run.forget_fraction, run.method.label, self._entry_of(run.id))
        ]


def _new_scheduler(settings: Scheduler, moments: HalvingMoments) -> Any:
    """Create the scheduler of a group, which knows no runs yet."""
    grace = max(settings.grace, moments.first)
    return AsyncHyperBandScheduler(
        time_attr="epoch",
        metric="score",
        mode="max",
        max_t=max(grace, moments.end - 1),
        grace_period=grace,
        reduction_factor=settings.reduction,
        stop_last_trials=False,
    )


def _scored(metric: Metric, metrics: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return an epoch as Tune's schedulers see it. Without a score they let the run go on."""
    score = weighted(metric, dict(metrics))
    if score is None:
        return {"epoch": epoch}
    return {"epoch": epoch, "score": score}
