"""Runs as trials of one Tune experiment: an epoch a step, in processes that are used again."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unlearnbench.errors import PluginError, is_deterministic
from unlearnbench.execution import Resources
from unlearnbench.ledger import Ledger, Runtime
from unlearnbench.plan import RunSpec
from unlearnbench.plugin_code import place
from unlearnbench.records import Record
from unlearnbench.searching import Scheduler
from unlearnbench.settings import SweepConfig
from unlearnbench.stopping import Stopped, held
from unlearnbench.sweep.devices import own_devices
from unlearnbench.sweep.faults import Guard, Worker, with_notices
from unlearnbench.sweep.gang import together
from unlearnbench.sweep.halving import halving
from unlearnbench.sweep.nodes import Luggage
from unlearnbench.sweep.placement import alive, strategy
from unlearnbench.sweep.search import Search, searcher
from unlearnbench.sweep.told import heard, told


def carry_out(
    runs: Sequence[RunSpec],
    config: SweepConfig,
    runtime: Runtime,
    ledger: Ledger,
    search: Search | None = None,
    scheduler: Scheduler | None = None,
) -> None:
    """All `runs`, in their order, or what `search` decides; returns when each has a record.

    scheduler  what may stop them early
    """
    from ray import tune

    guard = Guard(ledger.folder, config.ray.retries, joined=config.ray.address is not None)
    known = {run.id: run for run in runs} if search is None else search.runs
    space: Any = tune.grid_search([parameters(run) for run in runs]) if search is None else {}
    scratch = ledger.folder / "ray"
    shutil.rmtree(scratch, ignore_errors=True)
    tuner = tune.Tuner(
        tune.with_resources(_trainable(runtime, config, ledger), _placement(config)),
        param_space={"run": space},
        tune_config=tune.TuneConfig(
            num_samples=1 if search is None else search.total,
            search_alg=None if search is None else searcher(search, parameters),
            scheduler=halving(scheduler, config.epochs, known, ledger.folder),
            reuse_actors=True,
            # Without a limit Tune queues all trials at once, and then keeps no order.
            max_concurrent_trials=ledger.spent.slots,
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
            callbacks=[_watcher(ledger, known, guard, search, _left_by(runtime, config, ledger))],
        ),
    )
    with held():  # the guard looks whether SIGTERM has come
        tuner.fit()
    shutil.rmtree(scratch, ignore_errors=True)


def parameters(run: RunSpec) -> dict[str, str]:
    """A run as a trial's parameters: all of it, since Tune unpickles the trainable for each."""
    return {"id": run.id, "model": run.model.name, "spec": run.model_dump_json()}


def _placement(config: SweepConfig) -> Any:
    """What a trial takes, by its model."""
    from ray import tune

    nodes = [node["Resources"] for node in alive()]
    each = {model.name: config.resources_of(model.name) for model in config.models}

    def factory(trial: dict[str, Any]) -> Any:
        wanted = each[trial["run"]["model"]]
        # The coordinator of several processes takes nothing itself.
        first: list[dict[str, float]] = [{}] if wanted.world > 1 else []
        return tune.PlacementGroupFactory(
            first + [wanted.each] * wanted.world, strategy=strategy(nodes, wanted)
        )

    return factory


def _left_by(
    runtime: Runtime, config: SweepConfig, ledger: Ledger
) -> Callable[[RunSpec], Record | None]:
    """What a run that was stopped left of itself."""
    return lambda run: runtime.stopped(run, config, ledger.folder)


def _watcher(
    ledger: Ledger,
    runs: Mapping[str, RunSpec],
    guard: Guard,
    search: Search | None,
    left_by: Callable[[RunSpec], Record | None],
) -> Any:
    """Tune's events, told to the ledger and to a search."""
    from ray import tune

    # ruff: noqa: ARG002  # the signatures are Tune's, which passes all of this by name

    class Watcher(tune.Callback):
        """Of what Tune gives, the trial says which run it is about."""

        def __reduce__(self) -> tuple[Any, ...]:
            # Tune stores its callbacks for a resumption, which is never asked of it.
            return tune.Callback, ()

        def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
            guard.look(trials)

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ledger.began(_run(trial))

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            for line in result["notices"]:
                ledger.progress.warn(line)
            if not result.get("told"):
                epoch, devices = heard(result["result"])
                guard.reached(trial, epoch.epoch)
                ledger.reached(_run(trial), epoch, result["time_this_iter_s"], devices)

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            guard.left(trial)
            run = _run(trial)
            if failed := trial.last_result.get("failed"):
                tell(ledger.gave_up(run, failed))
            elif ledger.storage.fetch(ledger.folder / "records" / run.id):
                tell(ledger.ended(run))
            else:  # the scheduler ended it between two epochs
                tell(ledger.stopped(run, left_by(run)))

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            guard.left(trial)
            if not guard.is_stopping:
                ledger.retried(_run(trial), Path(trial.error_file).read_text("utf-8"))

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            guard.left(trial)
            tell(ledger.gave_up(_run(trial), Path(trial.error_file).read_text("utf-8")))

    def tell(record: Record) -> None:
        if search is not None:
            search.tell(record)

    def _run(trial: Any) -> RunSpec:
        return runs[trial.config["run"]["id"]]

    return Watcher()


def _trainable(runtime: Runtime, config: SweepConfig, ledger: Ledger) -> type[Any]:
    """A run as Tune sees it: an epoch a step, and the next run in the same process."""
    from ray import tune

    folder, slots = ledger.folder, ledger.spent.slots
    luggage = Luggage.of(config, folder)

    class Run(tune.Trainable):
        """Nothing of a run outlives it here but what the process has loaded."""

        def setup(self, config: dict[str, Any]) -> None:
            self._worker = Worker(folder)
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._run = RunSpec.model_validate_json(new_config["run"]["spec"])
            # Of a run that was stopped this closes the generator, and so frees its model.
            self._results: Any = None
            self._last: dict[str, Any] = {}
            return True

        def step(self) -> dict[str, Any]:
            with self._worker.at_work():
                resources = config.resources_of(self._run.model.name)
                try:
                    return with_notices(self._epoch(resources))
                except Stopped:
                    raise
                except Exception as error:
                    if not is_deterministic(error):
                        raise
                    # Tried again it would fail again.
                    text = "".join(traceback.format_exception(error))
                    end = {"failed": text, "done": True, "told": True}
                    return with_notices({**self._last, **end})

        def _epoch(self, resources: Resources) -> dict[str, Any]:
            if self._results is None:
                devices = partial(own_devices, resources, slots)
                work = partial(_epochs, runtime, self._run, luggage, devices)
                self._results = together(work, resources, folder)
            result: dict[str, Any] | None = next(self._results, None)
            if result is None:
                return {**self._last, "done": True, "told": True}
            self._last = result
            return self._last

    return Run


def _epochs(
    runtime: Runtime, run: RunSpec, luggage: Luggage, devices: Callable[[], Mapping[str, float]]
) -> Iterator[dict[str, Any]]:
    """A run as each of its processes carries it out, wherever that is: Tune's result by epoch."""
    try:
        for result in runtime.run_epochs(run, *luggage.unpack()):
            yield {"epoch": result.epoch, "result": told(result, devices()), "done": False}
    except Stopped:
        raise
    except SystemExit as error:  # Ray would take it for a process that was killed
        called = f"sys.exit({error.code!r}) was called"
        raise PluginError(f"{called} ({place(error)})") from error
