"""Weak runs are stopped early: Tune's asynchronous successive halving, over epochs.

Runs are compared with runs of the same method on the same model and forget set only, those of
earlier commands among them. What a stopped run has reached becomes a record of status `stopped`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unlearnbench.plan import RunSpec
from unlearnbench.records import read_records
from unlearnbench.searching import Metric, Scheduler, weighted
from unlearnbench.sweep.told import heard


def halving(
    how: Scheduler | None, epochs: int, runs: Mapping[str, RunSpec], folder: Path
) -> Any | None:
    """Tune's scheduler; None without one.

    runs    all that it will see, by id; it may grow
    folder  whose records say what earlier commands came to
    """
    if how is None:
        return None
    from ray.tune.schedulers import FIFOScheduler

    metric, groups = how.metric, _groups(how, epochs, folder)

    def of(trial: Any) -> Any:
        run = runs[trial.config["run"]["id"]]
        return groups[run.model.name, run.forget_fraction, run.method.label]

    class Halving(FIFOScheduler):
        """One of Tune's for each group: forget sets and models are not alike in any metric."""

        def __reduce__(self) -> tuple[Any, ...]:
            return FIFOScheduler, ()

        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            of(trial).on_trial_add(tune_controller, trial)

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            epoch, _ = heard(result["result"])
            scored = _scored(metric, epoch.metrics, epoch.epoch)
            return str(of(trial).on_trial_result(tune_controller, trial, scored))

        def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
            of(trial).on_trial_remove(tune_controller, trial)

        def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
            """Nothing: its last epoch was heard of when it came."""

    made: Any = Halving
    return made()


def _groups(how: Scheduler, epochs: int, folder: Path) -> defaultdict[tuple[str, float, str], Any]:
    """A scheduler of Tune's for each model, forget fraction and method, made when asked for."""
    from ray.tune.schedulers import AsyncHyperBandScheduler

    def fresh() -> Any:
        return AsyncHyperBandScheduler(
            time_attr="epoch",
            metric="score",
            mode="max",
            # A run in its last epoch is as good as ended: nothing is saved by stopping it.
            max_t=max(how.grace, epochs - 1),
            grace_period=how.grace,
            reduction_factor=how.reduction,
            stop_last_trials=False,
        )

    groups: defaultdict[tuple[str, float, str], Any] = defaultdict(fresh)
    for record in read_records(folder):
        if record.kind == "run" and record.status != "failed":
            place = (record.model, record.forget_fraction, record.method)
            stand_in = SimpleNamespace(trial_id=record.id)
            groups[place].on_trial_add(None, stand_in)
            for result in record.epochs:
                scored = _scored(how.metric, result.metrics, result.epoch)
                groups[place].on_trial_result(None, stand_in, scored)
    return groups


def _scored(metric: Metric, metrics: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """What the scheduler sees; without a score it decides nothing."""
    score = weighted(metric, dict(metrics))
    return {"epoch": epoch} | ({} if score is None else {"score": score})
