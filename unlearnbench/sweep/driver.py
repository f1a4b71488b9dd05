"""The command that a sweep is: plan, preparation, runs, report, each recorded as it ends."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from unlearnbench.console import Console
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.folder import (
    check_owner,
    claim_folder,
    locked,
    remove_leftovers,
    set_aside_damaged,
)
from unlearnbench.forecast import in_order
from unlearnbench.ledger import TABLE, Ledger, Runtime, SweepResult, default_runtime
from unlearnbench.notices import taken
from unlearnbench.plan import PLAN_FILE, Plan
from unlearnbench.progress import LOG_FILE, Progress
from unlearnbench.selection import SELECTION_FILE
from unlearnbench.settings import SweepConfig
from unlearnbench.stages import Stages
from unlearnbench.stopping import caught, install
from unlearnbench.storage import storage_of
from unlearnbench.sweep.cluster import joined
from unlearnbench.sweep.faults import RayLostError, lookout, stop_file
from unlearnbench.sweep.preparing import prepare
from unlearnbench.sweep.search import Search
from unlearnbench.sweep.trials import carry_out
from unlearnbench.tracking import Tracker

RESTARTS = 3
"""Times that a local Ray is started again without an epoch that was finished in between."""


def run_sweep(
    config: SweepConfig, console: Console | None = None, runtime: Runtime | None = None
) -> SweepResult:
    """Carry out every run that has no record yet, then write the report.

    Raises: UnlearnbenchError where the folder is another sweep's or in use, or where a preparation
    fails. A run that fails is tried again, unless the same error would come again, then recorded as
    failed, and the others go on.
    """
    begin = time.monotonic()
    runtime = runtime or default_runtime()
    plan = runtime.plan(config)
    check_owner(plan)
    with caught(), locked(plan.folder), Progress(console or Console()) as progress:
        folder = claim_folder(plan).resolve()
        progress.keep(folder / LOG_FILE)
        for line in taken():
            progress.warn(line)
        remove_leftovers(folder)
        set_aside_damaged(folder, progress.warn)
        storage = storage_of(config, folder)
        storage.check()
        with Tracker(config.tracking, folder, config, warn=progress.warn) as tracker:
            ledger = Ledger(folder, progress, tracker, storage)
            plan = _finish(plan, runtime, ledger)
            tracker.settle()  # the page shows where its runs are in MLflow
            page = runtime.report(folder)
            files = [folder / PLAN_FILE, page, page.with_name(TABLE)]
            storage.put(files)
            kept = [folder / LOG_FILE, folder / SELECTION_FILE]
            tracker.log_files([*files[1:], *kept], complete=not ledger.failed)
        seconds = ledger.spent.by_phase(time.monotonic() - begin)
        progress.spent(seconds, ledger.spent.by_device())
    return ledger.result(plan.runs, page, seconds)


def _finish(plan: Plan, runtime: Runtime, ledger: Ledger) -> Plan:
    """Whatever has no record yet, again where Ray dies over it; returns the whole plan."""
    lost, before = 0, -1
    while True:
        try:
            with ExitStack() as stack:
                return _go_on(plan, runtime, ledger, stack)
        except RayLostError as error:
            # What counts is what was done since: a machine that kills Ray each minute is no loop.
            lost = lost + 1 if ledger.reached_epochs == before else 1
            before = ledger.reached_epochs
            if plan.config.ray.address is not None or lost > RESTARTS:
                raise _gone(plan, error, lost) from None
        gc.collect()  # what Tune left speaks to Ray when it goes: now, while there is none


def _go_on(plan: Plan, runtime: Runtime, ledger: Ledger, stack: ExitStack) -> Plan:
    """Whatever has no record yet, and what follows from the records; returns the whole plan.

    Ray is started, for the time of `stack`, only if there is something.
    """
    config, stages = plan.config, Stages(plan, ledger.folder)
    models = [model.name for model in config.models]
    # What a scheduler stopped is done for a sweep that has one, and only for such.
    again = ("failed",) if config.search.scheduler else ("failed", "stopped")
    tried: set[str] = {*ledger.failed}
    begun = asked = False
    while True:
        finished = ledger.track_finished(again)
        plan = stages.following(finished | tried)
        claim_folder(plan)
        ledger.progress.planned({run.id for run in plan.runs})
        waiting = in_order(models, [r for r in plan.runs if r.id not in finished | tried])
        asking = not asked and any(study.left for study in stages.studies)
        if not waiting and not asking:
            stages.conclude()
            return plan
        search = Search(stages, waiting, ledger) if asking else None
        runs = [*waiting, *(search.stand_ins if search else ())]
        tasks = runtime.tasks(config, runs, ledger.folder)
        if not begun:
            begun = True
            _begin(config, ledger, stack)
            prepare(tasks, config, runtime, ledger)
            ledger.track_finished(again)
        known = [(run, ledger.seconds[run.id]) for run in plan.runs if run.id in ledger.seconds]
        done = len(plan.runs) - len(waiting)
        ledger.progress.running(runs, done, ledger.spent.slots, known)
        # What is chosen is reported on whole runs.
        scheduler = config.search.scheduler if stages.choices is None else None
        carry_out(waiting, config, runtime, ledger, search, scheduler)
        tried |= {run.id for run in waiting} | (search.runs.keys() if search else set())
        asked = asked or asking


def _begin(config: SweepConfig, ledger: Ledger, stack: ExitStack) -> None:
    """Ray, and whoever looks out for its end and ours, for the time of `stack`."""
    stack.enter_context(stop_file(ledger.folder))
    slots = stack.enter_context(joined(config, ledger.progress.warn))
    install()  # Ray has taken SIGTERM over
    ledger.spent.begin(slots)
    stack.enter_context(_told(ledger))
    stack.enter_context(lookout(ledger.progress.warn, joined=config.ray.address is not None))


@contextmanager
def _told(ledger: Ledger) -> Generator[None, None, None]:
    """That Ray is gone is said at once: its shutdown takes seconds."""
    try:
        yield
    except RayLostError as error:
        ledger.progress.warn(f"Ray is gone: {error}")
        raise


def _gone(plan: Plan, error: RayLostError, lost: int) -> UnlearnbenchError:
    address = plan.config.ray.address
    if address is not None:
        return UnlearnbenchError(
            f"ray.address: the cluster at {address!r} is gone: {error}; when it is there again, "
            "start the same command: finished epochs are kept"
        )
    return UnlearnbenchError(
        f"the local Ray died {lost} times without a finished epoch in between, at last: {error}; "
        "see that the machine's memory suffices (lower ray.concurrent), then start the same "
        "command: what is finished is kept"
    )
