"""A run that trains: its trainer, and its results on disk."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unlearnbench.api.method import Method
from unlearnbench.api.metric import Better
from unlearnbench.base.distributed import (
    all_gather,
    broadcast_from_main,
    is_main_process,
    world_size,
)
from unlearnbench.base.signals import Stopped, defer_sigterm, raise_if_stopped, sigterm_received
from unlearnbench.config.plan import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.evaluation.precision import needs_stored_weights
from unlearnbench.results.records import EpochResult, Record, run_record
from unlearnbench.results.run_estimate import estimated_peak
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.checkpoints import Checkpoints
from unlearnbench.runs.evaluated_run import EvaluatedRun, run_provenance
from unlearnbench.runs.run_state import RunState, remove_state, state_folders
from unlearnbench.runs.workspace import Workspace, workspace
from unlearnbench.training.objective import StepResult
from unlearnbench.training.trainer import NonFiniteError, Trainer


class TrainingRun(EvaluatedRun):
    """A run with a trainer, whose state is stored after every epoch.

    The trainer is stored only where a checkpoint pays. An interrupted run goes on from there: later
    epochs are trained and evaluated again, so a record never mixes two courses of training.
    """

    def __init__(self, spec: RunSpec, space: Workspace, method: Method) -> None:
        super().__init__(spec, space)
        self.method = method
        self.folder, trainer = state_folders(space.folder, spec.id)
        self.checkpoints = Checkpoints(trainer, space.storage)
        space.storage.fetch(self.folder, changes=True)
        stored = broadcast_from_main(lambda: RunState.load(self.folder))
        self.trainer, epoch = self.checkpoints.resumed(self._make_trainer, stored.epoch)
        self.state = stored.up_to(epoch)
        self._stored = {*self.state.evaluations}

    def _make_trainer(self) -> Trainer:
        trainer = build_trainer(self.spec, self.space, self.method)
        self.oom_retry = trainer.oom_retry
        self.oom_retry.persist(self.folder)
        if self.oom_retry.batch_tokens is not None:
            self.evaluator.batch_tokens = self.oom_retry.batch_tokens
        return trainer

    def _memory(self) -> dict[str, Any]:
        memory: dict[str, Any] = {"estimated_memory_mib": estimated_peak(self.spec, self.trainer)}
        if self.trainer.budget is not None:
            memory["micro_batch"] = asdict(self.trainer.budget)
        return super()._memory() | memory

    def run(self) -> Iterator[EpochResult]:
        """Yield the results of the remaining epochs, then write the record."""
        error, ended = self._collapse(), self._out_of_patience()
        try:
            while error is None and ended is None and self.state.epoch < self.spec.epochs:
                result = self._next_epoch()
                if result is not None:
                    yield result
                error, ended = self._collapse(), self._out_of_patience()
            epoch = self.state.epoch
            if error is None and (attacks := self._due(epoch, last=True)):
                with self._evaluated_model(exact=True) as model:
                    self._attack(model, epoch, attacks)
        except NonFiniteError as collapse:
            error = str(collapse)
        except Stopped:
            raise Stopped(self._stop_message()) from None
        with defer_sigterm():
            self._finish("finished" if error is None else "collapsed", error, ended)
            if is_main_process():
                remove_state(self.space.folder, self.spec.id, self.space.storage)

    def _collapse(self) -> str | None:
        """Return why the last evaluation ends the run, or None."""
        if not self.state.results:
            return None
        last, kept = self.state.results[-1], self.space.headline.kept
        epoch, utility = last.epoch, last.metrics.get(kept.column)
        if utility is None:
            return self._not_finite(epoch)
        share = self.spec.evaluation.stop_below
        start = None if share is None else self._start_utility()
        if share is None or start is None or utility >= share * start:
            return None
        return (
            f"epoch {epoch}: {kept.plain_label} {utility:.4g} is below {share * start:.4g}, which "
            f"is {share:g} of the fine-tuned model's {start:.4g} (evaluation.stop_below)"
        )

    def _out_of_patience(self) -> str | None:
        """Return why the run ends early by `evaluation.patience`, or None. Collective."""
        rule = self.spec.evaluation.patience
        if rule is None or self.state.epoch >= self.spec.epochs:
            return None
        columns = self.space.metrics.columns
        better: Better | None = next(
            (column.better for column in columns if column.name == rule.metric), None
        )
        results = ((r.epoch, r.metrics) for r in self.state.results)
        return broadcast_from_main(lambda: rule.ended(results, better))

    def _next_epoch(self) -> EpochResult | None:
        """Train the next epoch; evaluate it where that is due, and store it. Collective."""
        begin, number, steps = time.monotonic(), self.state.epoch + 1, list[StepResult]()
        try:
            with defer_sigterm():
                for step in self.trainer.epoch(number):
                    steps.append(step)
                    if any(all_gather(sigterm_received())):
                        raise Stopped
        finally:
            self.state = replace(self.state, steps=(*self.state.steps, *steps))
        seconds = (*self.state.seconds, time.monotonic() - begin)
        self.state = replace(self.state, epoch=number, seconds=seconds)
        result = self._evaluate_epoch(number) if number in self.spec.evaluate_at else None
        with defer_sigterm():
            self._save()
            if number < self.spec.epochs or self._due(number, last=True):
                self.checkpoints.epoch_ended(self.trainer, number, time.monotonic() - begin)
        return result

    def _evaluate_epoch(self, number: int) -> EpochResult:
        changed = any(spec.settings["at"] != "last" for spec in self.spec.attacks)
        exact = needs_stored_weights(self.trainer.model, self.spec.evaluation.precision)
        with self._evaluated_model(exact=exact or changed) as model:
            before = self.state.results[-1].epoch if self.state.results else 0
            result = self._evaluate(model, number, sum(self.state.seconds[before:number]))
            if result.metrics.get(self.space.headline.kept.column) is not None:
                self._attack(model, number, self._due(number, last=False))
            return result

    @contextmanager
    def _evaluated_model(self, *, exact: bool) -> Generator[Any, None, None]:
        """The model in evaluation mode."""
        # One of several processes must not leave the others in the middle: the next step stops all.
        deferred = defer_sigterm() if world_size() > 1 else nullcontext()
        with self.trainer.evaluation_model(exact=exact) as model, deferred:
            if world_size() == 1:
                raise_if_stopped()
            yield model

    def _save(self) -> None:
        if is_main_process():
            self.state.save(self.folder, self._stored)
            self.space.storage.push(self.folder, changes=True)

    def _stop_message(self) -> str:
        """One line on what SIGTERM costs."""
        epoch = self.checkpoints.epoch
        goes_on = f"goes on after epoch {epoch}" if epoch else "begins again"
        return f"stopped by SIGTERM; the run {goes_on}"


def stopped_record(spec: RunSpec, config: SweepConfig, folder: Path) -> Record | None:
    """Build the record of a run that was stopped between two epochs, from its stored state.

    None if there is none, since it was stopped in its first epoch.
    """
    state_folder, _ = state_folders(folder, spec.id)
    space = workspace(config, folder)
    space.storage.fetch(state_folder, changes=True)
    state = RunState.load(state_folder)
    if not state.epoch:
        return None
    made = run_provenance(spec, space, state.started)
    return run_record(spec, status="stopped", provenance=made, **state.of_record())
