"""Runs as trials of a Tune experiment: one step of Tune's is a run's way to its next evaluation.

Processes are reused.
"""

import gc
import shutil
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import UnlearnbenchError, is_deterministic, no_room
from unlearnbench.base.signals import defer_sigterm, raise_if_stopped
from unlearnbench.config.plan import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Metric, Scheduler, weighted
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record, read_records
from unlearnbench.sweep.code_shipping import WorkerContext
from unlearnbench.sweep.optuna_search import Search, searcher
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.sweep_state import SweepState, last_failure
from unlearnbench.sweep.worker_group import (
    alive,
    decode_report,
    encode_report,
    run_on_workers,
    strategy,
)

EntryOf = Callable[[str], str]
"""Name of the entry that a run is a trial of, by the run's id; empty for a run of none."""


def no_entry(run_id: str) -> str:  # noqa: ARG001
    """The `EntryOf` of runs that no search has drawn."""
    return ""


def moments_of_halving(config: SweepConfig) -> tuple[int, int]:
    """Return the first epoch at which runs may be stopped, and the one at which all end.

    In a sweep by steps they are the first evaluated step, and the one behind the last at which a
    run can be stopped before its end.
    """
    if config.unit is Unit.EPOCH:
        return 1, config.budget
    first, *later = config.evaluate_at
    before_the_last = [first, *later][:-1]
    return first, (before_the_last[-1] if before_the_last else first) + 1


def halving_scheduler(
    settings: Scheduler | None,
    moments: tuple[int, int],
    runs: Mapping[str, RunSpec],
    folder: Path,
    entry_of: EntryOf = no_entry,
) -> Any | None:
    """Tune's scheduler; None without settings.

    moments   see `moments_of_halving`
    runs      all runs that it will see, by id; may grow
    folder    the sweep's, with the records of earlier commands
    entry_of  by which runs of one method are kept apart
    """
    if settings is None:
        return None
    from ray.tune.schedulers import FIFOScheduler

    first, last = moments
    metric, groups = settings.metric, halving_groups(settings, last, folder, entry_of, first)

    def group_of(trial: Any) -> Any:
        run = runs[trial.config["run"]["id"]]
        return groups[run.model.name, run.forget_fraction, run.method.label, entry_of(run.id)]

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

    scheduler: Any = Halving
    return scheduler()


def halving_groups(
    settings: Scheduler, epochs: int, folder: Path, entry_of: EntryOf, first: int = 1
) -> defaultdict[tuple[str, SplitKey, str, str], Any]:
    """A scheduler for each model, split, method and entry, created at its first use.

    Args:
        settings: Metric and rungs.
        epochs: Epoch, or step, at which no run is stopped any more.
        folder: Folder of the sweep, with the records of earlier commands.
        entry_of: By which runs of one method are kept apart.
        first: First epoch, or step, at which runs have a result.
    """
    grace = max(settings.grace, first)
    from ray.tune.schedulers import AsyncHyperBandScheduler

    def new_scheduler() -> Any:
        return AsyncHyperBandScheduler(
            time_attr="epoch",
            metric="score",
            mode="max",
            # Stopping a run in its last epoch saves nothing.
            max_t=max(grace, epochs - 1),
            grace_period=grace,
            reduction_factor=settings.reduction,
            stop_last_trials=False,
        )

    groups: defaultdict[tuple[str, SplitKey, str, str], Any] = defaultdict(new_scheduler)
    for record in read_records(folder):
        if record.kind == "run" and record.status != "failed":
            location = (*record.panel, record.method, entry_of(record.id))
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


def run_trials(
    runs: Sequence[RunSpec],
    config: SweepConfig,
    pipeline: Pipeline,
    state: SweepState,
    search: Search | None = None,
    scheduler: Scheduler | None = None,
    entry_of: EntryOf = no_entry,
) -> None:
    """Execute `runs` in their order, or those of `search`; returns when each has a record.

    scheduler  settings by which weak runs are stopped early
    entry_of   as in `halving_scheduler`
    """
    from ray import tune
    from ray.exceptions import OutOfMemoryError

    known = {run.id: run for run in runs} if search is None else search.runs
    space: Any = tune.grid_search([parameters(run) for run in runs]) if search is None else {}
    scratch = state.folder / "ray"
    shutil.rmtree(scratch, ignore_errors=True)
    tuner = tune.Tuner(
        tune.with_resources(_trainable(pipeline, config, state), _placement(config)),
        param_space={"run": space},
        tune_config=tune.TuneConfig(
            num_samples=1 if search is None else search.total,
            search_alg=None if search is None else searcher(search, parameters),
            scheduler=halving_scheduler(
                scheduler, moments_of_halving(config), known, state.folder, entry_of
            ),
            reuse_actors=True,
            # Without a limit Tune queues all trials at once, and then keeps no order.
            max_concurrent_trials=state.slots,
            trial_dirname_creator=lambda trial: str(trial.config["run"]["id"]),
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(scratch),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=config.ray.retries),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=0, checkpoint_at_end=False
            ),
            callbacks=[_callback(state, config, pipeline, known, search)],
        ),
    )
    with defer_sigterm():  # the callback checks whether SIGTERM has come
        try:
            tuner.fit()
        except tune.TuneError as error:  # has the text of what a callback raised
            raise no_room(str(error), state.folder) or error from None
        except RuntimeError as error:  # Tune does not expect it: Ray ended a worker for memory
            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
            raise UnlearnbenchError(
                "the machine's memory is nearly full, so Ray ended a run; end other programs or "
                "set ray.concurrent: 1, and start this again: finished runs are kept"
            ) from None
    shutil.rmtree(scratch, ignore_errors=True)


def parameters(run: RunSpec) -> dict[str, str]:
    """A run as a trial's parameters: the whole spec, as Tune unpickles the trainable per trial."""
    return {"id": run.id, "model": run.model.name, "spec": run.model_dump_json()}


def run_of(parameters: Mapping[str, str]) -> RunSpec:
    """The run that a trial's parameters describe, see `parameters`."""
    return RunSpec.model_validate_json(parameters["spec"])


def _placement(config: SweepConfig) -> Any:
    """The resources of a trial, by its model."""
    from ray import tune

    nodes = [node["Resources"] for node in alive()]
    by_model = {model.name: config.resources_of(model.name) for model in config.models}

    def factory(trial: dict[str, Any]) -> Any:
        resources = by_model[trial["run"]["model"]]
        # The coordinator of several processes needs no resources.
        first: list[dict[str, float]] = [{}] if resources.world_size > 1 else []
        return tune.PlacementGroupFactory(
            first + [resources.per_process] * resources.world_size,
            strategy=strategy(nodes, resources),
        )

    return factory


def _callback(
    state: SweepState,
    config: SweepConfig,
    pipeline: Pipeline,
    runs: Mapping[str, RunSpec],
    search: Search | None,
) -> Any:
    """Tune's callback, which passes events on to the sweep's state and to the search."""
    from ray import tune

    reached: dict[str, int] = {}
    """Last epoch, or step, by trial."""
    # ruff: noqa: ARG002  # the signatures are Tune's, which passes all of this by name

    class EventCallback(tune.Callback):
        """Translates Tune's trials to runs."""

        def __reduce__(self) -> tuple[Any, ...]:
            # Tune stores its callbacks to resume from, which no sweep does.
            return tune.Callback, ()

        def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
            raise_if_stopped()

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            state.progress.started(_run(trial))

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            for line in result["warnings"]:
                state.progress.warn(line)
            if full := no_room(last_failure(result.get("failed", ""))[0]):
                raise full  # the other runs would end like this one
            if not result.get("repeated"):
                epoch = decode_report(result["report"])
                if epoch.epoch > reached.get(trial.trial_id, 0):  # it has all its retries again
                    reached[trial.trial_id] = epoch.epoch
                    trial.max_failures = trial.num_failures + config.ray.retries
                state.epoch_ended(_run(trial), epoch, result["time_this_iter_s"])

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            run = _run(trial)
            if failed := trial.last_result.get("failed"):
                ended(state.run_ended(run, failed))
            elif state.storage.fetch(state.folder / "records" / run.id):
                ended(state.run_ended(run))
            else:  # the scheduler stopped it between two epochs
                ended(state.run_stopped(run, pipeline.stopped(run, config, state.folder)))

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            raise_if_stopped()  # which may have ended the process
            reason, _ = last_failure(Path(trial.error_file).read_text("utf-8"))
            state.progress.retrying(_run(trial), reason)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            raise_if_stopped()  # which may have ended the process
            ended(state.run_ended(_run(trial), Path(trial.error_file).read_text("utf-8")))

    def ended(record: Record) -> None:
        if search is not None:
            search.add_record(record)

    def _run(trial: Any) -> RunSpec:
        return runs[trial.config["run"]["id"]]

    return EventCallback()


def _trainable(pipeline: Pipeline, config: SweepConfig, state: SweepState) -> type[Any]:
    """A run as Tune's trainable: a step ends at an evaluation; the next run reuses the process."""
    from ray import tune

    context = WorkerContext.capture(config, state.folder)

    class Run(tune.Trainable):
        """Nothing of a run stays in the process but the models that it has loaded."""

        def setup(self, config: dict[str, Any]) -> None:
            # Modules stay: each run collects garbage before it begins, and need not look at them.
            gc.freeze()
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            # Read in `step`, which reports an error: one that is raised here ends the process.
            self._stored: dict[str, str] = new_config["run"]
            # Closes the generator of a run that was stopped, which frees its model.
            self._results: Any = None
            self._last: dict[str, Any] = {}
            return True

        def step(self) -> dict[str, Any]:
            try:
                result = self._epoch()
            except Exception as error:  # of any method or library; sorted below
                if not is_deterministic(error) and no_room(str(error)) is None:
                    raise
                # Another try would fail again.
                text = "".join(traceback.format_exception(error))
                result = {**self._last, "failed": text, "done": True, "repeated": True}
            return {**result, "warnings": drain()}

        def _epoch(self) -> dict[str, Any]:
            if self._results is None:
                work = partial(_epochs, pipeline, run_of(self._stored), context)
                resources = config.resources_of(self._stored["model"])
                self._results = run_on_workers(work, resources)
            result: dict[str, Any] | None = next(self._results, None)
            if result is None:
                return {**self._last, "done": True, "repeated": True}
            self._last = result
            return self._last

    return Run


def _epochs(
    pipeline: Pipeline,
    run: RunSpec,
    context: WorkerContext,
) -> Iterator[dict[str, Any]]:
    """Execute a run in one of its processes; yields Tune's result of each epoch."""
    for result in pipeline.run_epochs(run, *context.activate()):
        yield {"epoch": result.epoch, "report": encode_report(result), "done": False}
