"""Execute tasks and runs as the trials of a Tune experiment, in processes that are used again."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unlearnbench.base.errors import UnlearnbenchError, no_room
from unlearnbench.base.signals import defer_sigterm
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Scheduler
from unlearnbench.sweep.code_shipping import WorkerContext
from unlearnbench.sweep.gpu_sharing import MOST, GpuSharing, Room, SharedQueue
from unlearnbench.sweep.optuna_search import Search
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.preparation import Preparation
from unlearnbench.sweep.sweep_state import SweepState
from unlearnbench.sweep.trial_messages import place_of
from unlearnbench.sweep.work_queue import NextRun, PlannedRuns, SearchedRuns, WorkQueue
from unlearnbench.sweep.worker_group import alive, strategy


@dataclass(frozen=True)
class Batch:
    """What a Tune experiment executes.

    Attributes:
        preparation: The tasks before the runs.
        runs: The runs, in the order in which they begin if they have what they need.
        search: Gives the runs instead of `runs`. None if all runs are planned.
        scheduler: Settings by which weak runs are stopped early. None if all runs end.
        entry_of: Gives the method entry of a run by its id, see `halving.EntryOf`.
        show_begin: Is called before the first run begins.
    """

    preparation: Preparation
    runs: Sequence[RunSpec]
    search: Search | None
    scheduler: Scheduler | None
    entry_of: Callable[[str], str]
    show_begin: Callable[[], None]

    @property
    def known_runs(self) -> Mapping[str, RunSpec]:
        """All runs by id. The search adds those that it suggests."""
        if self.search is not None:
            return self.search.runs
        return {run.id: run for run in self.runs}

    def next_run(self) -> NextRun:
        """Return the function that gives one run after the other."""
        if self.search is not None:
            return SearchedRuns(self.search, self.preparation).next
        return PlannedRuns(self.runs, self.preparation).next


def run_trials(batch: Batch, config: SweepConfig, pipeline: Pipeline, state: SweepState) -> None:
    """Execute tasks and runs; return when all tasks are done and each run has a record.

    Args:
        batch: The tasks and runs.
        config: The sweep's configuration.
        pipeline: The stages of the sweep.
        state: The sweep's state, which takes note of events.

    Raises:
        UnlearnbenchError: A task fails, a start model has not learned its rows, the disk is full,
            or memory is nearly full. Finished tasks and runs are kept.
    """
    if not any(config.resources_of(model.name).is_measured for model in config.models):
        _execute(batch, config, pipeline, state)
        return
    # A measured run needs a process that has used no memory before.
    if not batch.preparation.is_over:
        _execute(replace(batch, runs=(), search=None), config, pipeline, state)
    batch.show_begin()
    _execute(batch, config, pipeline, state, shares_gpus=True)


def _execute(
    batch: Batch,
    config: SweepConfig,
    pipeline: Pipeline,
    state: SweepState,
    *,
    shares_gpus: bool = False,
) -> None:
    """Carry out an experiment; see `run_trials`."""
    from ray import tune
    from ray.exceptions import OutOfMemoryError

    scratch = state.folder / "ray"
    shutil.rmtree(scratch, ignore_errors=True)
    tuner = _tuner(batch, config, pipeline, state, shares_gpus=shares_gpus)
    with defer_sigterm():  # the callback checks whether SIGTERM has come
        try:
            tuner.fit()
        except tune.TuneError as error:
            # Tune passes on the text of what a callback has raised, but not the exception.
            raise no_room(str(error), state.folder) or error from None
        except RuntimeError as error:
            # Tune does not expect that Ray ends a worker because memory runs low.
            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
            raise UnlearnbenchError(
                "the machine's memory is nearly full, so Ray ended a run; end other programs or "
                "set ray.concurrent: 1, and start this again: finished runs are kept"
            ) from None
    shutil.rmtree(scratch, ignore_errors=True)


def _tuner(
    batch: Batch,
    config: SweepConfig,
    pipeline: Pipeline,
    state: SweepState,
    *,
    shares_gpus: bool,
) -> Any:
    """Set up an experiment; for the arguments see `run_trials`."""
    from ray import tune

    from unlearnbench.sweep.halving import HalvingByGroup, moments_of_halving
    from unlearnbench.sweep.tune_adapters import (
        EventCallback,
        QueueSearcher,
        SharedGpuSearcher,
        WorkScheduler,
    )
    from unlearnbench.sweep.worker import Worker

    known_runs = batch.known_runs
    queue = WorkQueue(batch.preparation, batch.next_run(), batch.show_begin, state.slots)
    sharing = _shared_queue(batch, config, state) if shares_gpus else None
    most_at_a_time = state.slots
    searcher: Any = QueueSearcher(queue, keeps_processes=_can_pause(config))
    if sharing is not None:
        searcher = SharedGpuSearcher(sharing)
        most_at_a_time = config.ray.concurrent or max(state.slots, int(sharing.sharing.gpus * MOST))
    halving = None
    if batch.scheduler is not None:
        moments = moments_of_halving(config)
        halving = HalvingByGroup(batch.scheduler, moments, known_runs, state.folder, batch.entry_of)
    context = WorkerContext.capture(config, state.folder)
    trainable = tune.with_parameters(Worker, pipeline=pipeline, sweep=config, context=context)
    callback = EventCallback(state, config, pipeline, known_runs, batch.search, queue, sharing)
    return tune.Tuner(
        tune.with_resources(trainable, _placement(config)),
        param_space={},
        tune_config=tune.TuneConfig(
            num_samples=-1,  # until the searcher has no more work
            search_alg=searcher,
            scheduler=WorkScheduler(queue, halving),
            reuse_actors=True,
            # Without a limit Tune queues all trials at once, and then keeps no order.
            max_concurrent_trials=most_at_a_time,
            trial_dirname_creator=_folder_name,
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(state.folder / "ray"),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=config.ray.retries),
            # Runs write their own checkpoints.
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=0, checkpoint_at_end=False
            ),
            callbacks=[callback],
        ),
    )


def _can_pause(config: SweepConfig) -> bool:
    """Whether slots without work may keep their processes.

    On a cluster or a GPU they would hold what others could use.
    """
    if config.ray.address is not None:
        return False
    needed = [config.resources_of(model.name) for model in config.models]
    return not any(
        resources != needed[0] or resources.gpus or resources.world_size > 1 for resources in needed
    )


def _shared_queue(batch: Batch, config: SweepConfig, state: SweepState) -> SharedQueue:
    """Return the queue of runs that share GPUs by measurement."""
    room = Room.of(config, [node["Resources"] for node in alive()])
    sharing = GpuSharing(config, state.folder, room, state.progress.shares_gpus)
    if batch.search is not None:
        return SharedQueue(batch.search.next, ahead=1, sharing=sharing)
    remaining = iter(batch.runs)
    return SharedQueue(
        lambda: next(remaining, None), ahead=max(len(batch.runs), 1), sharing=sharing
    )


def _folder_name(trial: Any) -> str:
    """Return the name of a trial's folder. A run that is repeated alone has two trials."""
    run = trial.config.get("run")
    if run is None:
        return f"preparation-{trial.trial_id}"
    place = place_of(run)
    is_repeated = place is not None and place.attempt > 1
    return f"{run['id']}-alone" if is_repeated else str(run["id"])


def _placement(config: SweepConfig) -> Callable[[dict[str, Any]], Any]:
    """Return the function by which Tune gets the resources of a trial from its parameters."""
    from ray import tune

    nodes = [node["Resources"] for node in alive()]
    resources_by_model = {model.name: config.resources_of(model.name) for model in config.models}

    def resources_of_trial(trial: dict[str, Any]) -> Any:
        work = trial.get("run") or trial.get("task") or {"model": config.models[0].name}
        resources = resources_by_model[work["model"]]
        bundles = [resources.per_process] * resources.world_size
        place = place_of(work)
        if place is not None:
            bundles = [{**resources.per_process, "GPU": place.share}]
        if resources.world_size > 1:
            # The trial's own process comes first. It only coordinates, and needs no resources.
            bundles = [{}, *bundles]
        return tune.PlacementGroupFactory(bundles, strategy=strategy(nodes, resources))

    return resources_of_trial
