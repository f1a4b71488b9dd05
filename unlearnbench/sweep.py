"""A plan carried out on Ray: preparation as tasks, runs as trials of Tune.

Only this module imports ray. Three things are unlike a usual Tune script. Worker processes are
reused from trial to trial, since each start costs seconds of imports. Tune keeps no checkpoints and
resumes nothing: records on disk say what is finished, so whatever is killed, the same command goes
on. And Ray says nothing on its own: a callback tells progress and MLflow.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unlearnbench import environment
from unlearnbench.console import Console
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.folder import locked, remove_leftovers
from unlearnbench.ledger import (
    TABLE,
    Ledger,
    Runtime,
    SweepResult,
    Task,
    default_runtime,
    in_order,
    last_failure,
)
from unlearnbench.plan import Plan, RunSpec, check_folder, claim_folder
from unlearnbench.progress import Progress
from unlearnbench.records import EpochResult
from unlearnbench.registry import plugin_files, register_file
from unlearnbench.settings import SweepConfig, SweepSettings
from unlearnbench.tracking import Tracker

STORE_BYTES = 100 * 2**20
"""Ray's shared memory: specs and metrics pass through it, no models."""


def run_sweep(
    config: SweepConfig, console: Console | None = None, runtime: Runtime | None = None
) -> SweepResult:
    """Carry out every run that has no record yet, then write the report.

    Raises: UnlearnbenchError where the folder is another sweep's or in use, or where a preparation
    fails. A run that fails is tried again, then recorded as failed, and the others go on.
    """
    begin = time.monotonic()
    runtime = runtime or default_runtime()
    plan = runtime.plan(config)
    check_folder(plan)
    with locked(plan.folder), Progress(console or Console()) as progress:
        folder = claim_folder(plan).resolve()
        remove_leftovers(folder)
        with Tracker(config.tracking, folder, config, warn=progress.warn) as tracker:
            ledger = Ledger(folder, progress, tracker)
            _carry_out(plan, runtime, ledger)
            page = runtime.report(folder)
            tracker.log_files([page, page.with_name(TABLE)], complete=not ledger.failed)
        seconds = ledger.spent.by_phase(time.monotonic() - begin)
        progress.spent(seconds)
    return ledger.result(len(plan.runs), page, seconds)


def _carry_out(plan: Plan, runtime: Runtime, ledger: Ledger) -> None:
    """Whatever has no record yet; Ray is started only if there is something."""
    finished = ledger.track_finished()
    waiting = in_order(plan, [run for run in plan.runs if run.id not in finished])
    if not waiting:
        return
    tasks = runtime.tasks(plan.config, waiting, ledger.folder)
    with _ray(plan.config.sweep) as slots:
        ledger.spent.slots = slots
        _prepare(tasks, plan.config, runtime, ledger)
        ledger.track_finished()
        ledger.progress.running(waiting, len(plan.runs) - len(waiting), slots)
        _run({run.id: run for run in waiting}, plan.config, runtime, ledger)


def _prepare(tasks: Sequence[Task], config: SweepConfig, runtime: Runtime, ledger: Ledger) -> None:
    """Each task when those before it are done, as many at a time as runs."""
    import ray

    waiting = [task for task in tasks if not task.done]
    done = {task.id for task in tasks} - {task.id for task in waiting}
    ledger.progress.preparing([task.label for task in waiting])
    execute = _remote(runtime, config, ledger.folder)
    running: dict[Any, Task] = {}
    while waiting or running:
        ready = [task for task in waiting if done.issuperset(task.after)]
        for task in ready[: ledger.spent.slots - len(running)]:
            running[execute.remote(task)] = task
            waiting.remove(task)
        ended, _ = ray.wait(list(running), num_returns=1, timeout=2)
        for one in ended:
            task = running.pop(one)
            ledger.prepared(task, _preparation(task, one))
            done.add(task.id)
        ledger.under_way(running.values(), runtime)


def _run(runs: dict[str, RunSpec], config: SweepConfig, runtime: Runtime, ledger: Ledger) -> None:
    """All runs as trials of one experiment, in the given order."""
    from ray import tune

    scratch = ledger.folder / "ray"
    shutil.rmtree(scratch, ignore_errors=True)
    how = config.sweep
    needs = {"CPU": how.cpus_per_run, "GPU": how.gpus_per_run}
    tuner = tune.Tuner(
        tune.with_resources(_trainable(runtime, config, ledger.folder, runs), needs),
        param_space={"run": tune.grid_search(list(runs))},
        tune_config=tune.TuneConfig(
            reuse_actors=True,
            # Without a limit Tune queues all trials at once, and then keeps no order.
            max_concurrent_trials=ledger.spent.slots,
            trial_dirname_creator=lambda trial: str(trial.config["run"]),
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(scratch),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=how.retries),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=0, checkpoint_at_end=False
            ),
            callbacks=[_watcher(ledger, runs)],
        ),
    )
    tuner.fit()
    shutil.rmtree(scratch, ignore_errors=True)


def _watcher(ledger: Ledger, runs: dict[str, RunSpec]) -> Any:
    """Tune's events, told to the ledger."""
    from ray import tune

    # ruff: noqa: ARG002  # the signatures are Tune's, which passes all of this by name

    class Watcher(tune.Callback):
        """Of what Tune gives, the trial says which run it is about."""

        def __reduce__(self) -> tuple[Any, ...]:
            # Tune stores its callbacks for a resumption, which is never asked of it.
            return tune.Callback, ()

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            if not result["done"]:
                epoch = EpochResult(**result["result"])
                ledger.reached(runs[trial.config["run"]], epoch, result["time_this_iter_s"])

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ledger.ended(runs[trial.config["run"]])

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ledger.retried(runs[trial.config["run"]], Path(trial.error_file).read_text("utf-8"))

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ledger.gave_up(runs[trial.config["run"]], Path(trial.error_file).read_text("utf-8"))

    return Watcher()


def _trainable(
    runtime: Runtime, config: SweepConfig, folder: Path, runs: dict[str, RunSpec]
) -> type[Any]:
    """A run as Tune sees it: an epoch a step, and the next run in the same process."""
    from ray import tune

    files = plugin_files()

    class Run(tune.Trainable):
        """Nothing of a run outlives it here but what the process has loaded."""

        def setup(self, config: dict[str, Any]) -> None:
            for file in files:
                register_file(file)
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._run = runs[new_config["run"]]
            self._results: Any = None
            self._last: dict[str, Any] = {}
            return True

        def step(self) -> dict[str, Any]:
            if self._results is None:
                self._results = iter(runtime.run_epochs(self._run, config, folder))
            result: EpochResult | None = next(self._results, None)
            if result is None:
                return {**self._last, "done": True}
            # Metrics also flat, by their own names, for Tune's searchers and schedulers.
            metrics = {k: v for k, v in result.metrics.items() if v is not None}
            self._last = {**metrics, "epoch": result.epoch, "result": vars(result), "done": False}
            return self._last

    return Run


def _remote(runtime: Runtime, config: SweepConfig, folder: Path) -> Any:
    """Preparation as a task of Ray, with the resources and the retries of a run."""
    import ray

    files, how = plugin_files(), config.sweep

    @ray.remote(
        num_cpus=how.cpus_per_run,
        num_gpus=how.gpus_per_run,
        max_retries=how.retries,
        retry_exceptions=True,
    )
    def execute(task: Task) -> float:
        for file in files:
            register_file(file)
        return runtime.execute(task, config, folder)

    return execute


def _preparation(task: Task, reference: Any) -> float:
    """Seconds that a preparation took; a user's error where it failed."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return float(ray.get(reference))
    except RayTaskError as error:
        cause = error.cause
        reason = str(cause) if isinstance(cause, UnlearnbenchError) else last_failure(str(error))[0]
    except RayError:
        reason = "its process died: killed, or out of memory"
    raise UnlearnbenchError(
        f"{task.label}: {reason}; mend that and start the same command again: what is prepared "
        "already is kept"
    )


@contextmanager
def _ray(how: SweepSettings) -> Generator[int, None, None]:
    """Ray for the time of the `with`; yields how many runs go at a time."""
    with environment.for_driver(local=how.address is None):
        import ray
        from ray._private import worker

        # What a failing run means is told here, in a line of ours; `--json` owns standard output.
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        setattr(worker, "_worker_logs_enabled", False)  # noqa: B010  # it may be gone one day
        try:
            ray.init(
                runtime_env={"env_vars": environment.of_worker(how.cpus_per_run)},
                log_to_driver=False,
                logging_level=logging.ERROR,
                **_where(how),
            )
            yield _slots(how)
        except ConnectionError as error:  # how Ray says that `auto` finds nothing
            raise environment.no_cluster(how.address or "local", error) from None
        finally:
            with environment.without_collection():
                ray.shutdown()


def _where(how: SweepSettings) -> dict[str, Any]:
    """The cluster, or this machine alone, where Ray is gone with this process."""
    if how.address is not None:
        environment.check_address(how.address)
        return {"address": how.address}
    return {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": math.ceil(how.concurrent * how.cpus_per_run),
        "num_gpus": None if how.gpus_per_run else 0,
        "object_store_memory": STORE_BYTES,
    }


def _slots(how: SweepSettings) -> int:
    """How many runs fit at a time; an error where none does, since Ray would wait forever."""
    import ray

    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    needs = {"CPU": how.cpus_per_run, "GPU": how.gpus_per_run}
    fits = [int(there.get(name, 0.0) / need + 1e-9) for name, need in needs.items() if need]
    if not min(fits):
        told = ", ".join(f"{there.get(name, 0.0):g} {name}" for name in needs)
        raise UnlearnbenchError(
            f"sweep.cpus_per_run: {how.cpus_per_run:g}, sweep.gpus_per_run: "
            f"{how.gpus_per_run:g}: no run fits into what Ray has ({told}); lower them"
        )
    return min(fits) if how.address else min(how.concurrent, *fits)
