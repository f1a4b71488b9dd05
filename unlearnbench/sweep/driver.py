"""The command that a sweep is: plan, preparation, runs, report, each recorded as it ends."""

from __future__ import annotations

import time

from unlearnbench.console import Console
from unlearnbench.folder import locked, remove_leftovers
from unlearnbench.forecast import in_order
from unlearnbench.ledger import TABLE, Ledger, Runtime, Spent, SweepResult, default_runtime
from unlearnbench.plan import PLAN_FILE, Plan, check_folder, claim_folder
from unlearnbench.progress import Progress
from unlearnbench.settings import SweepConfig
from unlearnbench.storage import storage_of
from unlearnbench.sweep.cluster import joined
from unlearnbench.sweep.preparing import prepare
from unlearnbench.sweep.trials import carry_out
from unlearnbench.tracking import Tracker


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
        storage = storage_of(config, folder)
        storage.check()
        with Tracker(config.tracking, folder, config, warn=progress.warn) as tracker:
            ledger = Ledger(folder, progress, tracker, storage)
            _finish(plan, runtime, ledger)
            page = runtime.report(folder)
            storage.put([folder / PLAN_FILE, page, page.with_name(TABLE)])
            tracker.log_files([page, page.with_name(TABLE)], complete=not ledger.failed)
        seconds = ledger.spent.by_phase(time.monotonic() - begin)
        progress.spent(seconds, ledger.spent.by_device())
    return ledger.result(len(plan.runs), page, seconds)


def _finish(plan: Plan, runtime: Runtime, ledger: Ledger) -> None:
    """Whatever has no record yet; Ray is started only if there is something."""
    finished = ledger.track_finished()
    models = [model.name for model in plan.config.models]
    waiting = in_order(models, [run for run in plan.runs if run.id not in finished])
    if not waiting:
        return
    tasks = runtime.tasks(plan.config, waiting, ledger.folder)
    with joined(plan.config) as slots:
        ledger.spent = Spent(slots)
        prepare(tasks, plan.config, runtime, ledger)
        ledger.track_finished()
        ledger.progress.running(waiting, len(plan.runs) - len(waiting), slots)
        carry_out(waiting, plan.config, runtime, ledger)
