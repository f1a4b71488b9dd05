"""Execute runs as the trials of a Tune experiment, in processes that are used again."""

import shutil
from collections.abc import Callable, Sequence
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
from unlearnbench.sweep.sweep_state import SweepState
from unlearnbench.sweep.trial_messages import parameters, place_of
from unlearnbench.sweep.worker_group import alive, strategy


def run_trials(
    runs: Sequence[RunSpec],
    config: SweepConfig,
    pipeline: Pipeline,
    state: SweepState,
    search: Search | None,
    scheduler: Scheduler | None,
    entry_of: Callable[[str], str],
) -> None:
    """Execute runs; return when each of them has a record.

    Args:
        runs: The runs, in the order in which they begin.
        config: The sweep's configuration.
        pipeline: The stages of the sweep.
        state: The sweep's state, which takes note of events.
        search: Gives the runs instead of `runs`. None if all runs are planned.
        scheduler: Settings by which weak runs are stopped early. None if all runs end.
        entry_of: Gives the method entry of a run by its id, see `halving.EntryOf`.

    Raises:
        UnlearnbenchError: The disk is full, or memory is nearly full. Finished runs are kept.
    """
    from ray import tune
    from ray.exceptions import OutOfMemoryError

    scratch = state.folder / "ray"
    shutil.rmtree(scratch, ignore_errors=True)
    tuner = _tuner(runs, config, pipeline, state, search, scheduler, entry_of)
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
    runs: Sequence[RunSpec],
    config: SweepConfig,
    pipeline: Pipeline,
    state: SweepState,
    search: Search | None,
    scheduler: Scheduler | None,
    entry_of: Callable[[str], str],
) -> Any:
    """Set up the experiment; for the arguments see `run_trials`."""
    from ray import tune

    from unlearnbench.sweep.halving import HalvingByGroup, moments_of_halving
    from unlearnbench.sweep.tune_adapters import (
        EventCallback,
        QueueSearcher,
        Run,
        SharedGpuSearcher,
    )

    queue = _shared_queue(runs, config, state, search)
    most_at_a_time = state.slots
    searcher: Any = None
    if queue is not None:
        known_runs = {run.id: run for run in runs} if search is None else search.runs
        space: Any = {}
        samples = -1  # until the searcher has no more runs, some of which it may repeat
        searcher = SharedGpuSearcher(queue)
        most_at_a_time = config.ray.concurrent or max(state.slots, int(queue.sharing.gpus * MOST))
    elif search is None:
        known_runs = {run.id: run for run in runs}
        # Tune starts a trial for each value of the grid.
        space = tune.grid_search([parameters(run) for run in runs])
        samples = 1
    else:
        known_runs = search.runs  # the search adds those that it suggests
        space = {}
        samples = search.total
        searcher = QueueSearcher(search)
    halving = None
    if scheduler is not None:
        moments = moments_of_halving(config)
        halving = HalvingByGroup(scheduler, moments, known_runs, state.folder, entry_of)
    context = WorkerContext.capture(config, state.folder)
    trainable = tune.with_parameters(Run, pipeline=pipeline, sweep=config, context=context)
    return tune.Tuner(
        tune.with_resources(trainable, _placement(config)),
        param_space={"run": space},
        tune_config=tune.TuneConfig(
            num_samples=samples,
            search_alg=searcher,
            scheduler=halving,
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
            callbacks=[EventCallback(state, config, pipeline, known_runs, search, queue)],
        ),
    )


def _shared_queue(
    runs: Sequence[RunSpec], config: SweepConfig, state: SweepState, search: Search | None
) -> SharedQueue | None:
    """Return the queue of runs that share GPUs by measurement; None if no model has `gpu: auto`."""
    if not any(config.resources_of(model.name).is_measured for model in config.models):
        return None
    room = Room.of(config, [node["Resources"] for node in alive()])
    sharing = GpuSharing(config, state.folder, room, state.progress.shares_gpus)
    if search is not None:
        return SharedQueue(search.next, ahead=1, sharing=sharing)
    remaining = iter(runs)
    return SharedQueue(lambda: next(remaining, None), ahead=max(len(runs), 1), sharing=sharing)


def _folder_name(trial: Any) -> str:
    """Return the name of a trial's folder. A run that is repeated alone has two trials."""
    run = trial.config["run"]
    place = place_of(run)
    is_repeated = place is not None and place.attempt > 1
    return f"{run['id']}-alone" if is_repeated else str(run["id"])


def _placement(config: SweepConfig) -> Callable[[dict[str, Any]], Any]:
    """Return the function by which Tune gets the resources of a trial from its parameters."""
    from ray import tune

    nodes = [node["Resources"] for node in alive()]
    resources_by_model = {model.name: config.resources_of(model.name) for model in config.models}

    def resources_of_trial(trial: dict[str, Any]) -> Any:
        resources = resources_by_model[trial["run"]["model"]]
        bundles = [resources.per_process] * resources.world_size
        place = place_of(trial["run"])
        if place is not None:
            bundles = [{**resources.per_process, "GPU": place.share}]
        if resources.world_size > 1:
            # The trial's own process comes first. It only coordinates, and needs no resources.
            bundles = [{}, *bundles]
        return tune.PlacementGroupFactory(bundles, strategy=strategy(nodes, resources))

    return resources_of_trial
