"""Early stopping of weak runs: Tune's asynchronous successive halving, over epochs.

Runs are compared only with runs of the same method on the same model and forget set, including
those of earlier commands. A stopped run gets a record of status `stopped` with its epochs so far.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.search import Metric, Scheduler, weighted
from unlearnbench.results.records import read_records
from unlearnbench.sweep.worker_group import decode_report


def halving_scheduler(
    settings: Scheduler | None, epochs: int, runs: Mapping[str, RunSpec], folder: Path
) -> Any | None:
    """Tune's scheduler; None without settings.

    runs    all runs that it will see, by id; may grow
    folder  the sweep's, with the records of earlier commands
    """
    if settings is None:
        return None
    from ray.tune.schedulers import FIFOScheduler

    metric, groups = settings.metric, _groups(settings, epochs, folder)

    def group_of(trial: Any) -> Any:
        run = runs[trial.config["run"]["id"]]
        return groups[run.model.name, run.forget_fraction, run.method.label]

    class Halving(FIFOScheduler):
        """Delegates to a scheduler per group: metrics of different models are not comparable."""

        def __reduce__(self) -> tuple[Any, ...]:
            return FIFOScheduler, ()

        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            group_of(trial).on_trial_add(tune_controller, trial)

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            epoch = decode_report(result["report"])
            scored = _scored(metric, epoch.metrics, epoch.epoch)
            return str(group_of(trial).on_trial_result(tune_controller, trial, scored))

        def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
            group_of(trial).on_trial_remove(tune_controller, trial)

        def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
            """Do nothing: the last epoch was in `on_trial_result`."""

    scheduler: Any = Halving
    return scheduler()


def _groups(
    settings: Scheduler, epochs: int, folder: Path
) -> defaultdict[tuple[str, SplitKey, str], Any]:
    """A scheduler for each model, split and method, created at its first use."""
    from ray.tune.schedulers import AsyncHyperBandScheduler

    def new_scheduler() -> Any:
        return AsyncHyperBandScheduler(
            time_attr="epoch",
            metric="score",
            mode="max",
            # Stopping a run in its last epoch saves nothing.
            max_t=max(settings.grace, epochs - 1),
            grace_period=settings.grace,
            reduction_factor=settings.reduction,
            stop_last_trials=False,
        )

    groups: defaultdict[tuple[str, SplitKey, str], Any] = defaultdict(new_scheduler)
    for record in read_records(folder):
        if record.kind == "run" and record.status != "failed":
            location = (record.model, record.forget_fraction, record.method)
            trial = SimpleNamespace(trial_id=record.id)
            groups[location].on_trial_add(None, trial)
            for result in record.epochs:
                scored = _scored(settings.metric, result.metrics, result.epoch)
                groups[location].on_trial_result(None, trial, scored)
    return groups


def _scored(metric: Metric, metrics: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """The scheduler's view of an epoch; without a score it decides nothing."""
    score = weighted(metric, dict(metrics))
    return {"epoch": epoch} | ({} if score is None else {"score": score})
